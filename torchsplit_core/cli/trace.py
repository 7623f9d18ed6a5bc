"""The commands trace and draw: export a model to a graph file, and draw that file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.outputs import output_option
from torchsplit_core.cli.common import Command, Options, print_notes, with_progress, write_outcome


def add_trace_commands(command: Command, trust: Options, output: Options) -> None:
    """Add trace and draw to the command line through its `command(name, run)` and its shared options."""
    parser = command("trace", _trace)
    parser.add_argument(
        "source", metavar="SOURCE", help="sample:NAME, FILE.pt2, FILE.py:NAME or RUN[@step-N]"
    )
    trust(parser)
    output(parser)

    parser = command("draw", _draw)
    parser.add_argument("graph", metavar="GRAPH", help="a file of a graph, or -")
    output_option(parser, "FILE.svg or FILE.dot", required=True)
    parser.add_argument(
        "--what", default="dataflow", metavar="VIEW", help="dataflow, dominators, post-dominators or regions"
    )
    parser.add_argument(
        "--open", action="append", default=[], metavar="MODULE", help="draw it open; all: every one"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="STEP",
        help="leave a step of the preparation out of regions and dominators: "
        "dead, constants, aliases, weights or side-band",
    )
    parser.add_argument("--dark", action="store_true", help="for a dark ground")


def _trace(options: argparse.Namespace) -> int:
    graph = with_progress(
        lambda progress: workflow.trace(options.source, trust=options.trust, progress=progress)
    )
    write_outcome(graph, options)
    print(f"{options.source}: {len(graph.nodes)} nodes, {len(graph.ops)} operations", file=sys.stderr)
    print_notes(graph)
    return 0


def _draw(options: argparse.Namespace) -> int:
    _, graph = files.read_file(options.graph, expected="torchsplit.graph")
    opened = tuple(path for text in options.open for path in text.split(",") if path)
    text = workflow.drawing(
        graph,
        Path(options.output).suffix,
        options.what,
        opened,
        dark=options.dark,
        without=tuple(options.without),
    )
    files.replace_file(Path(options.output), text)
    return 0
