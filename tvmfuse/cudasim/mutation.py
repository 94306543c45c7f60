"""Break kernels on purpose and see whether the checker notices.

A mutant is the printed source with one defect: a barrier or a wait for asynchronous copies is
dropped, a bound check is made true, or one index is moved by one. Its verdict is

* ``reported``: the checker found something, or the launch failed;
* ``wrong result``: silent, but the numbers differ, so a numerics test sees it;
* ``harmless``: silent, and the result is the same bit for bit.

A dropped barrier or wait that changes numbers and is not reported is a hole in the checker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tvmfuse.cudasim.device import Session
from tvmfuse.cudasim.source import find_functions
from tvmfuse.cudasim.text import closing, line_of

_BARRIER = re.compile(r"__syncthreads\(\);")
# As inline PTX, or as a call of the helper that TVM prints for it.
_WAIT = re.compile(r"cp\.async\.wait_(?:group \d+|all)|\b\w*cp_async_wait_\w+\(\)")
_CHECK = re.compile(r"\bif (\()")
_INDEX = re.compile(r"\[[^;\n]*?(\(\(int\)threadIdx\.[xy]\))")


@dataclass(frozen=True)
class Mutant:
    """A defect at a line of the printed source."""

    kind: str
    line: int
    source: str


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    detail: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of the kernels in a printed source, in order of lines and kinds."""
    for function in find_functions(source):
        if not function.is_kernel:
            continue
        begin, end = function.body

        def changed(kind: str, start: int, stop: int, text: str) -> Mutant:
            return Mutant(kind, line_of(source, start), source[:start] + text + source[stop:])

        for match in _BARRIER.finditer(source, begin, end):
            yield changed("dropped barrier", *match.span(), ";")
        for match in _WAIT.finditer(source, begin, end):
            yield changed(
                "dropped wait", *match.span(), "cp.async.commit_group" if "." in match[0] else ""
            )
        for match in _CHECK.finditer(source, begin, end):
            start = match.start(1)
            yield changed("dropped bound check", start, closing(source, start), "(true)")
        for match in list(_INDEX.finditer(source, begin, end))[:4]:
            yield changed("moved index", *match.span(1), f"({match[1]} + 1)")


def judge(
    session: Session, run: Callable[[], np.ndarray], source: str, limit: int = 0
) -> list[Verdict]:
    """Run every mutant of ``source`` (the first ``limit`` of a kind; 0: all) on a checked session.

    ``run`` executes the program that holds the kernel and returns its result.

    Raises:
        ValueError: the intact kernel is not silent.
    """
    before = len(session.findings)
    expected = run()
    if len(session.findings) > before:
        raise ValueError(f"the intact kernel is reported: {session.findings[before]}")
    verdicts = []
    seen: dict[str, int] = {}
    for mutant in mutants(source):
        seen[mutant.kind] = seen.get(mutant.kind, 0) + 1
        if limit and seen[mutant.kind] > limit:
            continue
        verdicts.append(_judge_one(session, run, source, mutant, expected))
    session.substitute(None)
    return verdicts


def _judge_one(
    session: Session,
    run: Callable[[], np.ndarray],
    source: str,
    mutant: Mutant,
    expected: np.ndarray,
) -> Verdict:
    before = len(session.findings)
    session.substitute(lambda text: mutant.source if text == source else text)
    failure = ""
    result = None
    try:
        result = run()
    except RuntimeError as error:  # TVM's errors are RuntimeErrors
        failure = str(error).split("\n")[0]
    found = session.findings[before:]
    if found:
        return Verdict(mutant, "reported", str(found[0]))
    if failure:
        return Verdict(mutant, "reported", failure)
    same = result is not None and np.array_equal(result, expected, equal_nan=True)
    return Verdict(mutant, "harmless" if same else "wrong result", "")


def table(verdicts: dict[str, list[Verdict]]) -> str:
    """Verdicts by program, one mutant a line, and the totals."""
    lines = [f"{'program':<16} {'defect':<20} {'line':>5}  verdict"]
    for program, judged in verdicts.items():
        lines += [
            f"{program:<16} {v.mutant.kind:<20} {v.mutant.line:>5}  {v.outcome}  {v.detail[:90]}"
            for v in judged
        ]
    outcomes = [v.outcome for judged in verdicts.values() for v in judged]
    totals = ", ".join(f"{outcomes.count(o)} {o}" for o in sorted(set(outcomes)))
    return "\n".join([*lines, f"{len(outcomes)} mutants: {totals}"])
