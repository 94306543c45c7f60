"""Tables of a graph's nodes and of its edges with their reasons."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..graph import Graph, Node
from ..shapes import describe
from .data import EdgeEntry


def graph_table(graph: Graph) -> Table:
    """Number, operator, inputs and output of every node, as the lecture's table has them."""
    table = Table(title=f"graph of {graph.function}", title_justify="left")
    table.add_column("number", justify="right")
    table.add_column("operator")
    table.add_column("inputs", overflow="fold")
    table.add_column("output", overflow="fold")
    for number, operator, inputs, output in graph_rows(graph):
        table.add_row(str(number), operator, inputs, output)
    return table


def graph_rows(graph: Graph) -> list[tuple[int, str, str, str]]:
    """The rows of :func:`graph_table`."""
    return [
        (
            node.index + 1,
            node.operator.removeprefix("relax."),
            ", ".join(_inputs(node)),
            f"{node.name}: {describe(node.shape)} {node.dtype}".rstrip(),
        )
        for node in graph.nodes
    ]


def _inputs(node: Node) -> list[str]:
    from ..graph import used_variables

    return [var.name for var in used_variables(node.value)]


def edges_in_full(edges: Sequence[EdgeEntry]) -> Table:
    """Every edge with its code and sentence."""
    table = Table(title="producer-consumer edges", title_justify="left")
    table.add_column("producer")
    table.add_column("consumer")
    table.add_column("code")
    table.add_column("reason", overflow="fold")
    for edge in edges:
        table.add_row(edge.producer, edge.consumer, edge.code, edge.reason)
    return table
