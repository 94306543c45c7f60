"""A directed acyclic graph whose nodes can be merged, kept acyclic by construction.

Two units may merge only if no path between them runs through a third: then the fused group is
convex and the program can still be ordered.  The order is maintained incrementally by the
two-way search of Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic
graphs" (JEA 11, 2006), so each test looks only at the part of the order between the two units.
"""

from __future__ import annotations


class MergeableDag:
    """Units of nodes with a topological order; ``merge`` refuses what would make a cycle."""

    def __init__(self, inputs: list[tuple[int, ...]]) -> None:
        """Start with one unit per node; ``inputs[i]`` are the nodes that node ``i`` reads.

        Node numbers must already be a topological order.
        """
        count = len(inputs)
        self._unit = list(range(count))
        self._order = list(range(count))
        self._members: list[list[int]] = [[i] for i in range(count)]
        self._inputs = inputs
        self._outputs: list[list[int]] = [[] for _ in range(count)]
        for node, sources in enumerate(inputs):
            for source in sources:
                self._outputs[source].append(node)

    def unit(self, node: int) -> int:
        """The unit that ``node`` belongs to now."""
        root = node
        while self._unit[root] != root:
            root = self._unit[root]
        while self._unit[node] != root:
            self._unit[node], node = root, self._unit[node]
        return root

    def members(self, node: int) -> list[int]:
        """All nodes in the unit of ``node``, in no particular order."""
        return self._members[self.unit(node)]

    def order(self, node: int) -> int:
        """The position of the unit of ``node``: every unit that it reads has a smaller one."""
        return self._order[self.unit(node)]

    def _reach(self, start: int, edges: list, low: int, high: int, other: int) -> set[int] | None:
        """Units reachable from ``start`` inside the window; ``None`` if ``other`` is among them.

        The direct edge between ``start`` and ``other`` does not count.
        """
        seen: set[int] = set()
        stack = [start]
        while stack:
            current = stack.pop()
            for member in self._members[current]:
                for neighbour in edges[member]:
                    unit = self.unit(neighbour)
                    if unit == other:
                        if current != start:
                            return None
                        continue
                    if unit == start or unit in seen or not low < self._order[unit] < high:
                        continue
                    seen.add(unit)
                    stack.append(unit)
        return seen

    def merge(self, a: int, b: int) -> bool:
        """Put the units of ``a`` and ``b`` together; ``False`` (and no change) if not convex."""
        first, last = self.unit(a), self.unit(b)
        if first == last:
            return True
        if self._order[first] > self._order[last]:
            first, last = last, first
        low, high = self._order[first], self._order[last]
        after = self._reach(first, self._outputs, low, high, last)
        if after is None:
            return False
        before = self._reach(last, self._inputs, low, high, first)
        if before is None:
            return False
        pool = sorted([low, high, *(self._order[u] for u in after | before)])
        keep, gone = first, last
        if len(self._members[keep]) < len(self._members[gone]):
            keep, gone = gone, keep
        self._members[keep] += self._members[gone]
        self._members[gone] = []
        self._unit[gone] = keep
        sequence = [
            *sorted(before, key=self._order.__getitem__),
            keep,
            *sorted(after, key=self._order.__getitem__),
        ]
        for unit, position in zip(sequence, pool, strict=False):
            self._order[unit] = position
        return True

    def is_convex(self, nodes: list[int]) -> bool:
        """True if no path leaves ``nodes`` and comes back to them through another unit."""
        inside = {self.unit(node) for node in nodes}
        high = max(self._order[unit] for unit in inside)
        seen: set[int] = set()
        stack = list(inside)
        while stack:
            current = stack.pop()
            for member in self._members[current]:
                for neighbour in self._outputs[member]:
                    unit = self.unit(neighbour)
                    if unit in inside:
                        if current not in inside:
                            return False
                    elif unit not in seen and self._order[unit] < high:
                        seen.add(unit)
                        stack.append(unit)
        return True
