"""Runs the parts of cut models: the results must equal the model's to the bit.

    python -m benchmarks.stage_execution

Every small sample is cut into 2, 3 and 4 parts. These are written, loaded from the files and run at batch sizes other
than the traced one, against the model itself. Ends with 1 where a result differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.model_source import example_arguments, load_client, open_model
from torchsplit_core.partitioning import solve_partitioning_problem
from torchsplit_core.stages import StagedModel
from torchsplit_core.stages.bit_equal import same_bits
from torchsplit_core.stages.export_child import write_stages
from torchsplit_core.tracing.export import describe_program, export_program
from torchsplit_core.values import NodeProfile, Profile, ProfileRow

SAMPLES = ("clip", "bert", "fastpitch", "ocr", "resnet50", "llama", "diamond", "cond")
BATCHES = (1, 3, 4, 5, 8, 13)
CUTS = 3
"""Number of best cuts to try for each k."""


def equal(first: Any, second: Any) -> bool:
    """Whether two results are equal to the bit."""
    return all(map(same_bits, pytree.tree_leaves(first), pytree.tree_leaves(second)))


def compare(name: str, folder: Path) -> tuple[int, int]:
    """Number of runs of a small sample's parts compared with the model, and how many differed."""
    client = load_client(f"sample:{name}")
    model = open_model(client)
    examples = {batch: example_arguments(client, batch) for batch in (2, 3)}
    program = export_program(model, *examples[2], examples[3])
    graph = graph_from_dict(describe_program(program, 2))
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    row = ProfileRow("whole", "cpu", None, 2, 1, 100.0, 10.0, None, None, None, "measured")
    profile = Profile(name, graph.architecture_hash, {}, (row,), nodes)
    runs = wrong = 0
    for k in (2, 3, 4):
        outcome = solve_partitioning_problem(graph, profile, stages=k, top_k=CUTS, time_limit_s=2.0)
        for number, cut in enumerate(outcome.candidates):
            parts = folder / f"{name}-{k}-{number}"
            parts.mkdir()
            manifest = write_stages(program, cut.stages, examples, parts, graph.architecture_hash)
            staged = StagedModel(parts, manifest)
            for batch in BATCHES:
                args, kwargs = example_arguments(client, batch)
                with torch.no_grad():
                    wrong += not equal(staged(*args, **kwargs), model(*args, **kwargs))
                runs += 1
    return runs, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", nargs="*", default=list(SAMPLES))
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        print(f"| sample | runs (k = 2, 3, 4; {CUTS} cuts; batch {', '.join(map(str, BATCHES))}) | differ |")
        print("|---|---|---|")
        for name in options.samples:
            runs, differ = compare(name, Path(folder))
            wrong += differ
            print(f"| {name} | {runs} | {differ} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
