"""Which Hugging Face architectures trace here, by which route, how fast, and what cuts they have.

Every model is built at toy dimensions from its config and exported as `torchsplit trace` does it,
in this process. Prints a Markdown table; ends with 1 where fewer than `--at-least` architectures trace.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.huggingface_models import ARCHITECTURES, Architecture
from torchsplit_core.graph.preparation.prepare import prepare
from torchsplit_core.graph.regions import region_tree
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.tracing.export import describe_program, export_program
from torchsplit_core.tracing.export_inputs import OTHER_BATCH, TRACED_BATCH
from torchsplit_core.values import InputFault


def row(architecture: Architecture) -> tuple[bool, str]:
    """Whether it traces, and its row of the table, with seconds of the export and of the description."""
    model = architecture.build()
    inputs, other = architecture.inputs(TRACED_BATCH), architecture.inputs(OTHER_BATCH)
    begin = time.perf_counter()
    head = f"| {architecture.name} | {architecture.kind} | {architecture.model}"
    try:
        graph = graph_from_dict(
            describe_program(export_program(model, (), inputs, ((), other)), TRACED_BATCH)
        )
    except InputFault as fault:
        return False, f"{head} | – | – | refused: {fault.where}: {fault.problem} | {_since(begin)} | – |"
    seconds = _since(begin)
    cuts = len(region_tree(prepare(graph)).cut_points)
    return True, f"{head} | {len(graph.nodes)} | {len(graph.ops)} | {graph.route} | {seconds} | {cuts} |"


def _since(begin: float) -> str:
    return f"{time.perf_counter() - begin:.1f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these architectures alone")
    parser.add_argument("--at-least", type=int, default=25)
    options = parser.parse_args()
    print("| architecture | kind | class | nodes | operations | route | s | cut points |")
    print("|---" * 8 + "|")
    traced = 0
    for architecture in ARCHITECTURES:
        if options.only and architecture.name not in options.only:
            continue
        good, line = row(architecture)
        traced += good
        print(line, flush=True)
    if traced < options.at_least:
        print(f"{traced} architectures trace, {options.at_least} should", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
