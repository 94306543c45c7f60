"""Errors that a user can act on; the CLI prints their one sentence and exits with code 2."""


class TvmfuseError(Exception):
    """Base of all errors of tvmfuse: one sentence that names the thing and what to do."""


class FusionError(TvmfuseError):
    """A requested fusion is impossible or contradictory."""
