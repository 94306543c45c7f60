"""Errors of the emulated CUDA device."""

from tvmfuse.errors import TvmfuseError


class CudasimError(TvmfuseError):
    """The emulated device cannot be used, or a kernel cannot be built for it."""


class NotEmulatedError(CudasimError):
    """A kernel uses an instruction or a feature that the device does not model."""
