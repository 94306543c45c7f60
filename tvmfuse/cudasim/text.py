"""Reading C source: matching brackets, splitting at separators, line numbers."""

from __future__ import annotations

_OPENING = "([{"
_CLOSING = ")]}"


def closing(source: str, opening: int) -> int:
    """Index of the bracket that closes the one at ``opening``; strings and comments are skipped.

    Raises:
        ValueError: it is never closed.
    """
    depth = 0
    position = opening
    while position < len(source):
        skipped = _skip(source, position)
        if skipped > position:
            position = skipped
            continue
        if source[position] in _OPENING:
            depth += 1
        elif source[position] in _CLOSING:
            depth -= 1
            if depth == 0:
                return position + (source[position] != "}")
        position += 1
    raise ValueError(f"bracket in line {line_of(source, opening)} is never closed")


def split(source: str, separator: str) -> list[str]:
    """Parts of ``source`` between separators outside brackets and strings, stripped."""
    parts = [""]
    depth = 0
    position = 0
    while position < len(source):
        skipped = _skip(source, position)
        if skipped > position:
            parts[-1] += source[position:skipped]
            position = skipped
            continue
        character = source[position]
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
        position += 1
    return [part.strip() for part in parts]


def line_of(source: str, position: int) -> int:
    """1-based line number of a position."""
    return source.count("\n", 0, position) + 1


def _skip(source: str, position: int) -> int:
    """End of the string literal or comment that begins at ``position``, else ``position``."""
    if source[position] in "\"'":
        end = position + 1
        while end < len(source) and source[end] != source[position]:
            end += 2 if source[end] == "\\" else 1
        return min(end + 1, len(source))
    for begin, end_mark in (("/*", "*/"), ("//", "\n")):
        if source.startswith(begin, position):
            end = source.find(end_mark, position + 2)
            return len(source) if end < 0 else end + len(end_mark)
    return position
