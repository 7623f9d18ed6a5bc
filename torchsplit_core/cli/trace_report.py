"""The command trace-report: where the time of TorchSplit's work went, by the spans that it wrote."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core.cli.common import Command, Options
from torchsplit_core.files.contract import STANDARD_STREAM, origin_of, standard_input
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.telemetry import SpanNode, SpanTree

MOST_DEPTH = 24
"""Levels that are indented; deeper spans stand at the last."""
WIDTH = 56


def add_trace_report_command(command: Command, output: Options) -> None:
    """Add trace-report to the command line through its `command(name, run)` and its shared options."""
    parser = command("trace-report", _trace_report)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="spans as TORCHSPLIT_TELEMETRY=file or a collector wrote them (OTLP JSON, one request per line), "
        "a folder of such files, or -",
    )
    parser.add_argument("--most", type=int, default=200, metavar="N", help="lines of the tree (default 200)")
    output(parser)


def _trace_report(options: argparse.Namespace) -> int:
    from torchsplit_core.telemetry import parse_trace, read_trace, span_tree
    from torchsplit_core.telemetry.span_reader import LARGEST_TRACE_BYTES

    if options.most < 1:
        raise InputFault("--most", f"is {options.most}", "Give the lines of the tree, 1 or more.")
    if options.file == STANDARD_STREAM:
        spans, notes = parse_trace(standard_input(LARGEST_TRACE_BYTES), origin_of(options.file))
    else:
        spans, notes = read_trace(Path(options.file))
    if not spans:
        raise InputFault(
            origin_of(options.file),
            "has no span",
            "Run a command with TORCHSPLIT_TELEMETRY=file, and give its file.",
        )
    tree = span_tree(spans, notes)
    for note in tree.notes:
        print(f"note: {note}", file=sys.stderr)
    text = json.dumps(as_json(tree), indent=2) if options.json else "\n".join(text_lines(tree, options.most))
    if options.output:
        Path(options.output).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return 0


def as_json(tree: SpanTree) -> dict[str, Any]:
    """The tree as plain data; docs/file-formats.md has the fields."""
    return {
        "wall_ms": tree.wall_ms,
        "notes": list(tree.notes),
        "by_name": [asdict(total) for total in tree.totals],
        "critical_path": [node.span.span_id for node in tree.critical_path()],
        "slowest": [node.span.span_id for node in tree.slowest(10)],
        "spans": [_node_json(node) for node in tree.nodes],
    }


def _node_json(node: SpanNode) -> dict[str, Any]:
    span = node.span
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "service": span.service,
        "depth": node.depth,
        "start_ms": node.start_ms,
        "total_ms": node.total_ms,
        "self_ms": node.self_ms,
        "critical_ms": node.critical_ms,
        "error": span.error,
        "attributes": {name: _finite(value) for name, value in span.attributes},
    }


def _finite(value: Any) -> Any:
    """The value, with text for numbers that JSON lacks."""
    if isinstance(value, tuple):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and value - value != 0 else value


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
    return f"{_cell('  ' * min(depth, MOST_DEPTH) + label(node.span.name, node.span.attributes))} {cells}{failed}"


def label(name: str, attributes: Iterable[tuple[str, Any]]) -> str:
    """A span's name with what it worked on."""
    shown = {key.rpartition(".")[2]: value for key, value in attributes}
    batch = shown.get("batch_size")
    parts = (
        shown.get("model"),
        None if batch is None else f"batch {batch}",
        shown.get("device"),
        shown.get("slice"),
    )
    return " ".join((name.removeprefix("torchsplit."), *(str(part) for part in parts if part is not None)))


def _cell(text: str) -> str:
    """The text on one line of `WIDTH` characters; a file may have anything for a name."""
    from torchsplit_core.isolation.faults import printable_line

    line = printable_line(text)
    return f"{line[: WIDTH - 1]}…" if len(line) > WIDTH else line.ljust(WIDTH)
