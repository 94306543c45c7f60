"""Keep TVM's C++ log lines that a user can do nothing about off the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

# Written once per constant by the VM when an executable is saved.
CHATTER = ("Scope Saving", "Fast mode segfaults")


@contextmanager
def without_chatter() -> Iterator[None]:
    """Hold back what the body writes to file descriptor 2; afterwards pass on all but CHATTER.

    The lines come from C++, so ``contextlib.redirect_stderr`` does not see them.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            lines = held.read().decode(errors="replace").splitlines()
            kept = [line for line in lines if not any(word in line for word in CHATTER)]
            if kept:
                print("\n".join(kept), file=sys.stderr)
