"""Write torchsplit_core/evaluation/data/four_models.json: the four models of the evaluation on an A100-80GB.

CLIP, FastPitch and OCR are estimated from their traced graphs by the roofline, with its intervals. BERT-large has the
measured rows of the shipped library; its cut divides them by the node shares of the sample graph of that size. Every
model is included whole, and cut in two by the best partition that the search proves. Run it after a change of the
estimates or of the samples: `python -m tools.write_evaluation_models`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from torchsplit_core import workflow
from torchsplit_core.files import write_file
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.profiling import estimate_rows, estimated_nodes
from torchsplit_core.profiling.library import LIBRARY_GPU, MAX_PROCESSES_PER_SLICE, library_profile
from torchsplit_core.values import FleetEntry, PartitionOutcome, PlanModel, Point, Profile, Stage

FILE = Path(__file__).resolve().parent.parent / "torchsplit_core" / "evaluation" / "data" / "four_models.json"
NAMES = ("clip", "bert", "fastpitch", "ocr")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
STAGES = 2
DIGITS = 6
"""Significant digits written; the estimates are accurate to two."""


def modelled(name: str) -> tuple[Profile, PartitionOutcome]:
    """The profile of a model on the slices of an A100-80GB, and its partitions into two stages."""
    source = f"sample:{name}@large"
    graph = workflow.trace(source)
    if name == "bert":
        measured = library_profile("bert").rows
        rows = tuple(row for row in measured if row.processes <= MAX_PROCESSES_PER_SLICE)
    else:
        rows = estimate_rows(graph, (LIBRARY_GPU,), BATCHES)
    profile = Profile(source, graph.architecture_hash, {}, rows, estimated_nodes(graph))
    cuts = workflow.partition(source, profile, graph=graph, stages=STAGES, top_k=1, time_limit_s=60.0)
    print(name, len(rows), cuts.status, *cuts.candidates[0].cut_bytes_per_request, file=sys.stderr)
    return profile, cuts


def short(model: PlanModel) -> PlanModel:
    """The model without the names of its graph's nodes, with rounded figures."""
    variants = tuple(
        replace(
            variant,
            stages=tuple(Stage(stage.name, tuple(map(rounded, stage.points))) for stage in variant.stages),
        )
        for variant in model.variants
    )
    return replace(model, variants=variants)


def rounded(point: Point) -> Point:
    """The point, its figures rounded to DIGITS significant digits."""
    fields = ("throughput_rps", "latency_ms", "memory_gib", "low_rps", "high_rps")
    found = {name: getattr(point, name) for name in fields}
    return replace(
        point,
        **{name: None if value is None else float(f"{value:.{DIGITS}g}") for name, value in found.items()},
    )


def main() -> None:
    """Write the file."""
    known = [modelled(name) for name in NAMES]
    request = build_request(
        [profile for profile, _ in known],
        (FleetEntry(LIBRARY_GPU),),
        candidates=[cuts for _, cuts in known],
    )
    write_file(replace(request, models=tuple(map(short, request.models))), FILE)


if __name__ == "__main__":
    main()
