"""The command trace-report: where the time of TorchSplit's work went, by the spans that it wrote."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import files
from torchsplit_core.cli.common import Command, Options
from torchsplit_core.files.contract import STANDARD_STREAM, origin_of, standard_input
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.telemetry import SpanNode, SpanTree


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
    from torchsplit_core.cli.spans.text import text_lines
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
        files.replace_file(Path(options.output), text + "\n")
    if options.json or not options.output:
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
