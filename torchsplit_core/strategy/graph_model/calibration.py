"""Calibration of a traced model's steps by measurements: rows of its profile, and the user's measured steps."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp, log, sqrt

from torchsplit_core.graph.sizes import element_bytes
from torchsplit_core.profiling.flops import node_costs
from torchsplit_core.profiling.roofline import interval
from torchsplit_core.strategy.cost_model.interval import Offset, calibrated, fitted_spread, unseen, widened
from torchsplit_core.strategy.graph_model.blocks import weights
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.step import GraphStepModel, StageLoad
from torchsplit_core.strategy.search.machines import Machine
from torchsplit_core.values import Profile
from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.strategy.outcome import CalibrationRun
from torchsplit_core.values.strategy.request import MeasuredStep
from torchsplit_core.values.strategy.run import RunStep
from torchsplit_core.values.training import ParallelConfig, TrainingJob

Factors = tuple[tuple[int, float], ...]
"""Pairs of a batch size and the measured over the estimated seconds of its forward pass."""
HOST_SPREAD = 3.0
"""A processor's peaks are assumed: a step may take a third or three times the estimate. An assumption."""
HOST_DEVIATION, HOST_DEGREES = 0.22, 9
"""Standard deviation of the logarithm of measured over estimated steps on a host whose rates were measured, and its
degrees of freedom: ten samples (benchmarks.training_intervals)."""
MOST_STEPS = 3


def device_factors(
    model: GraphCostModel, machine: Machine, job: TrainingJob, profile: Profile | None
) -> Factors:
    """Forward seconds that the profile measured on this machine's device over the estimated ones, by batch.

    `model`: as it is served, which is what a profile measures.

    Ignores rows of slices, of other devices, of several processes and of a precision other than the step's.
    Raises InputFault for a profile of another architecture.
    """
    if profile is None:
        return ()
    if profile.architecture_hash and profile.architecture_hash != model.graph.architecture_hash:
        raise InputFault(
            "model.profile",
            f"{quoted(profile.source)} is a profile of another architecture",
            "Profile the model again.",
        )
    traced = max((element_bytes(node.dtype) for node in weights(model.graph)), default=4.0)
    if (traced == 2.0) != (job.precision in ("bf16", "fp16")):
        return ()
    step = GraphStepModel(model, machine, job, unseen())
    factors: dict[int, float] = {}
    for row in profile.rows:
        if row.basis != "measured" or row.stage != "whole" or row.processes != 1 or row.sequence_length:
            continue
        if _is_measured_on(row.gpu_type, row.profile, machine):
            estimated = _forward_s(step, row.batch_size)
            factors[row.batch_size] = row.batch_size / row.throughput_rps / estimated
    return tuple(sorted(factors.items()))


def _is_measured_on(gpu_type: str, profile: str | None, machine: Machine) -> bool:
    if not machine.host:
        return gpu_type == machine.type and profile is None
    cores = re.fullmatch(r"CPU-(\d+)c", gpu_type)
    if cores:
        return gpu_type == machine.type
    return gpu_type == "CPU" and profile in (None, machine.type.removeprefix("CPU-"))


def _forward_s(step: GraphStepModel, batch: int) -> float:
    """Estimated seconds of a forward pass, with the host's share as in `GraphStepModel.seconds`."""
    figures = step.figures(ParallelConfig(micro_batch=batch))
    device = sum(part.forward for part in figures)
    # A part's host seconds cover both passes; the forward pass starts about a third of the kernels.
    return step.seconds([StageLoad(device, sum(part.host for part in figures) / 3.0)])


def run_calibration(
    model: GraphCostModel,
    machine: Machine,
    job: TrainingJob,
    runs: tuple[RunStep, ...],
    factors: Factors,
    sample_s: float,
) -> tuple[CalibrationRun, ...]:
    """These runs, each beside what is estimated of its step on this machine.

    Left out is a run with choices that a traced model does not have.
    """
    calibration = []
    for run in runs:
        choices = run.choices
        passes = choices.data * choices.micro_batch
        of_sizes = choices.tensor * choices.context * choices.expert * choices.interleave > 1
        if of_sizes or choices.pipeline > model.parts or run.global_batch % passes:
            continue
        # A run's processes are all of one node, and perhaps more than those of the fleet's.
        cluster = replace(machine.cluster, gpus_per_node=max(machine.cluster.gpus_per_node, choices.devices))
        step = GraphStepModel(
            model,
            replace(machine, cluster=cluster),
            replace(job, global_batch=run.global_batch),
            unseen(),
            factors,
            sample_s,
        )
        estimated_s = step.estimate(choices).parts_s.total
        calibration.append(
            CalibrationRun(run.run, run.finished, run.global_batch, choices.devices, run.seconds, estimated_s)
        )
    return tuple(calibration)


def step_offset(
    model: GraphCostModel,
    machine: Machine,
    job: TrainingJob,
    measured: tuple[MeasuredStep, ...],
    factors: Factors,
    runs: tuple[CalibrationRun, ...] = (),
    sample_s: float = 0.0,
) -> Offset:
    """The offset and interval of this model's steps on this machine's devices.

    The spread was fitted to trainings of transformers; it is widened by the roofline's error for other models, or on a
    processor, whose peaks are assumed, by `HOST_SPREAD`, unless rows of a profile replace either. Measured steps of a
    device, and those of `runs` (`run_calibration`), calibrate it as rows of a framework do (`cost_model.interval`): the
    wider the interval without them, the more they count.
    """
    if len(measured) > MOST_STEPS:
        raise InputFault(
            "model.measured_steps", f"has {len(measured)} steps, more than {MOST_STEPS}", "Give fewer."
        )
    ratios = [log(run.seconds / run.estimated_s) for run in runs]
    for measured_step in measured:
        alone = GraphStepModel(
            model,
            machine,
            TrainingJob(measured_step.batch, job.precision, job.optimizer),
            unseen(),
            factors,
            sample_s,
        )
        choices = ParallelConfig(micro_batch=measured_step.batch)
        ratios.append(log(measured_step.seconds / alone.estimate(choices).parts_s.total))
    if factors:
        return calibrated(tuple(ratios))
    if machine.rates:
        return calibrated(
            tuple(ratios), replace(fitted_spread(), between=HOST_DEVIATION, degrees=HOST_DEGREES)
        )
    low, high = 1.0 / HOST_SPREAD, HOST_SPREAD
    if not machine.host:
        worst, best = interval(node_costs(model.graph, model.graph.traced_batch), machine.type)
        low, high = 1.0 / best, 1.0 / worst
    if ratios:
        return calibrated(tuple(ratios), widened(low, high))
    known = unseen()
    return Offset(
        known.factor,
        exp(-sqrt(log(known.low) ** 2 + log(low) ** 2)),
        exp(sqrt(log(known.high) ** 2 + log(high) ** 2)),
    )
