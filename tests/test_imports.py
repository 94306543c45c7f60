"""The package's import graph: no cycles, nobody imports the command line."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = {"tvmfuse": ROOT / "tvmfuse", "tvmfuse.schedules": ROOT / "schedules"}


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [*package.split("."), *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts).removesuffix(".__init__")
            found[name] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of this package that ``path`` imports at load time (not inside a function)."""
    base = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    result = set()
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ImportFrom) or (not node.level and not node.module):
            continue
        parent = base[: len(base) - node.level + 1] if node.level else []
        module = ".".join([*parent, *([node.module] if node.module else [])])
        for alias in node.names:
            submodule = f"{module}.{alias.name}"
            result.add(submodule if submodule in known else module)
    return {target for target in result if target in known and target != name}


def test_imports_are_acyclic_and_nobody_imports_the_command_line():
    known = modules()
    graph = {name: imported(name, path, known) for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle
    assert not [name for name, targets in graph.items() if "tvmfuse.cli" in targets]
    assert len(graph) > 40  # the walk found the package


def test_files_fit_in_the_head():
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert not {name: length for name, length in lengths.items() if length > 300}
