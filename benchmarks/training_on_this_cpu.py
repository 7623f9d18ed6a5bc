"""Training steps of sample models on this processor: time and peak memory, predicted beside measured.

    python -m benchmarks.training_on_this_cpu [--samples resnet50@large,…] [--batches 4,8]

Each sample trains some steps in a confined child (single precision, AdamW, the mean square of its outputs). Predicted
from its graph alone, with the assumed peaks of a processor's cores; with its profile, which is measured first; with
one measured step of another batch beside the profile. Baseline: one utilisation for all, the median over the other
samples of their operations a second. Peak memory is that of torch's allocator; beside it what torch's own tracker says.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.isolation import Limits
from torchsplit_core.profiling.training_step.measurement import StepMeasurement as Run
from torchsplit_core.profiling.training_step.measurement import measure_step, track_peak
from torchsplit_core.strategy.graph_model.calibration import device_factors, step_offset
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.step import GraphStepModel
from torchsplit_core.strategy.search.machines import Machine, read_fleet
from torchsplit_core.values import Profile
from torchsplit_core.values.strategy.request import MeasuredStep, StrategyNodes
from torchsplit_core.values.training import ParallelConfig, StepEstimate, TrainingJob
from torchsplit_core.values.units import MIB
from torchsplit_core.workflow import profile, trace

SAMPLES = "resnet50@large,fastpitch@large,ocr@large,clip@large"
BATCHES = "4,8"
LIMIT_S = 1800.0
"""Limit for a sample's steps at one batch size, long enough for a busy processor."""


@dataclass(frozen=True, slots=True)
class Case:
    """A sample at a batch size: its measurement, and the prediction of each method."""

    sample: str
    run: Run
    flops: float
    alone: StepEstimate
    profiled: StepEstimate
    calibrated: StepEstimate
    tracked_bytes: int


def predicted(
    model: GraphCostModel,
    machine: Machine,
    batch: int,
    known: Profile | None,
    measured: tuple[MeasuredStep, ...],
) -> StepEstimate:
    """Predict the step of a batch on one processor."""
    job = TrainingJob(batch, "fp32")
    factors = device_factors(model, machine, job, known)
    offset = step_offset(model, machine, job, measured, factors)
    return GraphStepModel(model, machine, job, offset, factors).estimate(ParallelConfig(micro_batch=batch))


def cases(sample: str, batches: Sequence[int], machine: Machine, steps: int) -> list[Case]:
    """A sample's cases at every batch size; each case is calibrated by the step measured at the next size."""
    source = f"sample:{sample}"
    graph: TorchGraph = trace(source)
    model = GraphCostModel(graph)
    _, known = profile(
        source, graph=graph, device="cpu", batch_sizes=tuple(batches), gpu_types=("A100-80GB",)
    )
    limits = Limits(wall_s=LIMIT_S)
    runs = {batch: measure_step(source, batch, steps=steps, limits=limits) for batch in batches}
    found = []
    for place, batch in enumerate(batches):
        other = runs[batches[(place + 1) % len(batches)]]
        one = (MeasuredStep(other.batch, other.seconds),)
        flops = 3.0 * sum(cost.matrix_flops for cost in model.costs(batch, "whole").operations)
        found.append(
            Case(
                sample,
                runs[batch],
                flops,
                predicted(model, machine, batch, None, ()),
                predicted(model, machine, batch, known, ()),
                predicted(model, machine, batch, known, one),
                track_peak(source, batch),
            )
        )
    return found


def table(found: Sequence[Case]) -> list[str]:
    """One row a case, then the medians of the errors."""
    lines = [
        "| sample | batch | measured s | from the graph | with its profile | and one step | one utilisation for all | "
        "measured MiB | reckoned | torch's tracker |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    errors: dict[str, list[float]] = {}
    for case in found:
        seconds, peak = case.run.seconds, case.run.peak_bytes
        others = [one.flops / one.run.seconds for one in found if one.sample != case.sample]
        memory = case.alone.memory
        said = {
            "from the graph": case.alone.seconds / seconds - 1,
            "with its profile": case.profiled.seconds / seconds - 1,
            "and one step": case.calibrated.seconds / seconds - 1,
            "one utilisation": case.flops / median(others) / seconds - 1 if others else nan,
            "memory": (memory.total - memory.reserve) / peak - 1,
            "tracker": case.tracked_bytes / peak - 1,
        }
        for name, error in said.items():
            errors.setdefault(name, []).append(abs(error))
        cells = ["n/a" if isnan(error) else f"{error:+.0%}" for error in said.values()]
        lines.append(
            f"| {case.sample} | {case.run.batch} | {seconds:.3g} | {' | '.join(cells[:4])} | {peak / MIB:.0f} | "
            f"{' | '.join(cells[4:])} |"
        )
    middle = ["n/a" if isnan(median(values)) else f"{median(values):.0%}" for values in errors.values()]
    lines.append(f"| median error | | | {' | '.join(middle[:4])} | | {' | '.join(middle[4:])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", default=SAMPLES)
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each (default 5)")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    (machine,) = read_fleet((StrategyNodes(1, 1, f"CPU-{cores}c"),), "fp32")
    batches = [int(text) for text in options.batches.split(",")]
    found = [
        case
        for sample in options.samples.split(",")
        for case in cases(sample, batches, machine, options.steps)
    ]
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
