"""The mergeable graph against naive reachability on random graphs."""

from __future__ import annotations

import random

import pytest

from tvmfuse.dag import MergeableDag

Edges = list[tuple[int, ...]]


def random_graph(generator: random.Random, count: int, density: float) -> Edges:
    """``inputs[i]`` of a random graph numbered in topological order."""
    return [
        tuple(source for source in range(node) if generator.random() < density)
        for node in range(count)
    ]


class Naive:
    """The same graph with every question answered from scratch."""

    def __init__(self, inputs: Edges) -> None:
        self.inputs = inputs
        self.units = [{node} for node in range(len(inputs))]

    def unit(self, node: int) -> set[int]:
        return next(unit for unit in self.units if node in unit)

    def is_convex(self, nodes: set[int]) -> bool:
        """True if nothing outside ``nodes``, taken with its whole unit, is between two of them."""
        inside = set().union(*(self.unit(node) for node in nodes))
        below = self._reachable_outside(inside)
        return not any(source in below for node in inside for source in self.inputs[node])

    def _reachable_outside(self, inside: set[int]) -> set[int]:
        """Nodes outside that read, directly or through others outside, something inside."""
        found: set[int] = set()
        grew = True
        while grew:
            grew = False
            for unit in self.units:
                if unit <= inside or unit <= found:
                    continue
                sources = {source for node in unit for source in self.inputs[node]}
                if sources & (inside | found):
                    found |= unit
                    grew = True
        return found - inside

    def merge(self, a: int, b: int) -> bool:
        merged = self.unit(a) | self.unit(b)
        if not self.is_convex(merged):
            return False
        self.units = [unit for unit in self.units if not unit <= merged] + [merged]
        return True


def check_order(dag: MergeableDag, inputs: Edges) -> None:
    """Every unit comes after the units that it reads, and no two share a position."""
    for node, sources in enumerate(inputs):
        for source in sources:
            if dag.unit(source) != dag.unit(node):
                assert dag.order(source) < dag.order(node)
    positions = {dag.unit(node): dag.order(node) for node in range(len(inputs))}
    assert len(set(positions.values())) == len(positions)


@pytest.mark.parametrize("seed", range(60))
def test_merges_agree_with_naive_reachability(seed: int) -> None:
    generator = random.Random(seed)
    count = generator.randint(2, 16)
    inputs = random_graph(generator, count, generator.choice([0.1, 0.2, 0.35]))
    dag, naive = MergeableDag(inputs), Naive(inputs)
    for _ in range(4 * count):
        probe = generator.sample(range(count), generator.randint(1, min(4, count)))
        assert dag.is_convex(probe) == naive.is_convex(set(probe)), (inputs, naive.units, probe)
        a, b = generator.randrange(count), generator.randrange(count)
        assert dag.merge(a, b) == naive.merge(a, b), (inputs, naive.units, a, b)
        check_order(dag, inputs)
    for node in range(count):
        assert set(dag.members(node)) == naive.unit(node)


def test_a_triangle_merges_only_from_neighbours() -> None:
    """0 -> 1 -> 2 and 0 -> 2: the ends cannot merge around the middle."""
    dag = MergeableDag([(), (0,), (0, 1)])
    assert not dag.is_convex([0, 2])
    assert not dag.merge(0, 2)
    assert dag.unit(0) != dag.unit(2)
    assert dag.merge(0, 1)
    assert dag.merge(0, 2)
    assert sorted(dag.members(1)) == [0, 1, 2]


def test_a_refused_merge_changes_nothing() -> None:
    dag = MergeableDag([(), (0,), (1,)])
    before = [(dag.unit(node), dag.order(node), sorted(dag.members(node))) for node in range(3)]
    assert not dag.merge(0, 2)
    after = [(dag.unit(node), dag.order(node), sorted(dag.members(node))) for node in range(3)]
    assert before == after


def test_two_merges_that_are_each_convex_but_not_together() -> None:
    """0 -> 3 and 2 -> 1: merging {0, 1} makes {2, 3} a cycle."""
    dag = MergeableDag([(), (), (), (0,), (2,)])
    assert dag.merge(0, 4)
    assert not dag.merge(2, 3)


def test_a_long_chain_merges_in_any_order() -> None:
    count = 2000
    inputs = [()] + [(node - 1,) for node in range(1, count)]
    dag = MergeableDag(inputs)
    pairs = [(node - 1, node) for node in range(1, count)]
    random.Random(7).shuffle(pairs)
    assert all(dag.merge(a, b) for a, b in pairs)
    assert len(dag.members(0)) == count
