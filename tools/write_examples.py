"""Write one small example of every contract file to examples/ (run after a change of a format).

`--mixes` writes only the published serving mixes to examples/mixes/: they need nothing measured.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from torchsplit_core import workflow
from torchsplit_core.files import write_file
from torchsplit_core.profiling.library import mix_request
from torchsplit_core.stages import export_stages
from torchsplit_core.values import (
    GraphEdge,
    PartitionDevices,
    PartitionNode,
    PartitionOutcome,
    PartitionRequest,
    PlanRequest,
    StageManifest,
)

FOLDER = Path(__file__).resolve().parent.parent / "examples"


def small_mix() -> PlanRequest:
    """Three models of the published mix S1 on one A100-80GB, exclusive, fair; one process a slice."""
    mix = mix_request("S1", 1)
    chosen = []
    for model in mix.models:
        if model.name in ("bert", "mobilenetv2", "resnet50"):
            (variant,) = model.variants
            (stage,) = variant.stages
            points = tuple(point for point in stage.points if point.processes == 1)
            chosen.append(
                replace(model, variants=(replace(variant, stages=(replace(stage, points=points),)),))
            )
    return replace(mix, models=tuple(chosen), solver=replace(mix.solver, time_limit_s=60.0))


def published_mixes() -> dict[str, PlanRequest]:
    """The two published serving mixes by file name: the fewest of eight GPUs, and fair on that many."""
    found = {}
    for mix, fewest in (("S1", 2), ("S3", 5)):
        found[f"{mix.lower()}_fewest_gpus"] = mix_request(mix, 8, "min_gpus")
        found[f"{mix.lower()}_fair_{fewest}gpus"] = mix_request(mix, fewest, "leximin")
    return found


def chain() -> PartitionRequest:
    """Six operations in a row with a shortcut, for two devices."""
    times = (1.0, 2.5, 0.5, 3.0, 1.5, 2.0)
    nodes = tuple(
        PartitionNode(str(number), time, memory_bytes=4096, output_bytes=1_000_000)
        for number, time in enumerate(times)
    )
    edges = tuple(GraphEdge(str(number), str(number + 1)) for number in range(5))
    devices = PartitionDevices(count=2, memory_bytes=2**30, link_gb_per_s=12.0)
    return PartitionRequest(nodes, (*edges, GraphEdge("0", "2")), devices)


def parts_of(source: str, cut: PartitionOutcome) -> StageManifest:
    """The manifest of the best cut's parts; the parts themselves are not kept."""
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room) / "parts"
        return export_stages(source, cut.candidates[0], folder, architecture_hash=cut.architecture_hash)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mixes", action="store_true", help="only examples/mixes/")
    only_mixes = parser.parse_args().mixes
    for name, mix in published_mixes().items():
        write_file(mix, FOLDER / "mixes" / f"{name}.json")
    if only_mixes:
        return
    source = "sample:diamond"
    graph = workflow.trace(source)
    types = ("A100-80GB",)
    _, profile = workflow.profile(source, graph=graph, device="cpu", batch_sizes=(1, 2), gpu_types=types)
    request = small_mix()
    cut = workflow.partition(source, profile, graph=graph, stages=2)
    for name, value in {
        "graph": graph,
        "profile": profile,
        "partition": cut,
        "stages": parts_of(source, cut),
        "partition_request": chain(),
        "plan_request": request,
        "plan": workflow.plan(request),
    }.items():
        write_file(value, FOLDER / f"{name}.json")


if __name__ == "__main__":
    main()
