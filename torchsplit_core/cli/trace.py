"""The commands trace and draw: a model as a graph file, and the file as a drawing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.outputs import output_option
from torchsplit_core.cli.common import Command, Options, hand_over, tell_notes, with_progress


def add_trace_commands(command: Command, trust: Options, output: Options) -> None:
    """Add trace and draw to the command line through its `command(name, run)` and its shared options."""
    made = command("trace", _trace)
    made.add_argument("source", metavar="SOURCE", help="sample:NAME, FILE.pt2 or FILE.py:NAME")
    trust(made)
    output(made)

    made = command("draw", _draw)
    made.add_argument("graph", metavar="GRAPH", help="a file of a graph, or -")
    output_option(made, "FILE.svg or FILE.dot", required=True)
    made.add_argument(
        "--what", default="dataflow", metavar="VIEW", help="dataflow, dominators, post-dominators or regions"
    )
    made.add_argument(
        "--open", action="append", default=[], metavar="MODULE", help="draw it open; all: every one"
    )
    made.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="STEP",
        help="leave a step of the preparation out of regions and dominators: "
        "dead, constants, aliases, weights or side-band",
    )
    made.add_argument("--dark", action="store_true", help="for a dark ground")


def _trace(options: argparse.Namespace) -> int:
    graph = with_progress(
        lambda progress: workflow.trace(options.source, trust=options.trust, progress=progress)
    )
    hand_over(graph, options)
    print(f"{options.source}: {len(graph.nodes)} nodes, {len(graph.ops)} operations", file=sys.stderr)
    tell_notes(graph)
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
