"""The text of trace-report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchsplit_core.isolation.faults import printable_line

if TYPE_CHECKING:
    from torchsplit_core.telemetry import SpanNode, SpanTree

MOST_DEPTH = 24
"""Levels that are indented; deeper spans stand at the last."""
WIDTH = 56


def text_lines(tree: SpanTree, most: int) -> Iterator[str]:
    """The report: the tree, the critical path, the slowest spans and the totals by name; times in milliseconds."""
    failed = sum(node.span.error is not None for node in tree.nodes)
    yield f"{len(tree.nodes)} spans in {tree.wall_ms:,.1f} ms, {failed} failed"
    yield ""
    yield f"{'span':<{WIDTH}} {'start':>12} {'total':>12} {'self':>12} {'critical':>12}  ms"
    yield from (_line(node, node.depth) for node in tree.nodes[:most])
    if len(tree.nodes) > most:
        yield f"… {len(tree.nodes) - most} more (--most)"
    yield from _section("critical path", tree.critical_path(), most)
    yield from _section("slowest by themselves", tree.slowest(10), 10)
    yield ""
    yield f"{'by name':<{WIDTH}} {'spans':>7} {'failed':>7} {'total':>12} {'median':>12} {'longest':>12}  ms"
    for total in tree.totals[:most]:
        times = " ".join(f"{time:>12,.1f}" for time in (total.total_ms, total.median_ms, total.longest_ms))
        yield f"{_cell(total.name)} {total.count:>7} {total.failed:>7} {times}"


def _section(title: str, nodes: Iterable[SpanNode], most: int) -> Iterator[str]:
    rows = list(nodes)
    yield ""
    yield title
    yield from (_line(node, 1) for node in rows[:most])
    if len(rows) > most:
        yield f"… {len(rows) - most} more (--most)"


def _line(node: SpanNode, depth: int) -> str:
    times = (node.start_ms, node.total_ms, node.self_ms, node.critical_ms)
    cells = " ".join(f"{time:>12,.1f}" for time in times)
    failed = "" if node.span.error is None else "  failed"
    return f"{_cell('  ' * min(depth, MOST_DEPTH) + node.label)} {cells}{failed}"


def _cell(text: str) -> str:
    """The text on one line of `WIDTH` characters; a file may have anything for a name."""
    line = printable_line(text)
    return f"{line[: WIDTH - 1]}…" if len(line) > WIDTH else line.ljust(WIDTH)
