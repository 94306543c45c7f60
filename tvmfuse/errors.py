"""Errors that a user can act on; the CLI prints their one sentence and exits with code 2."""


class TvmfuseError(Exception):
    """Base of all errors of tvmfuse: one sentence that names the thing and what to do."""


class FusionError(TvmfuseError):
    """A requested fusion is impossible or contradictory."""


class TargetError(TvmfuseError):
    """A target that TVM does not know or that this package does not compile for."""


class ModelError(TvmfuseError):
    """A model file that cannot be read, imported or given fixed shapes."""


class OutputError(TvmfuseError):
    """A result that cannot be written where it was asked for."""


class InstallationError(TvmfuseError):
    """The installed packages do not work together."""
