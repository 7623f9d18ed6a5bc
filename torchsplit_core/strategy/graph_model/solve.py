"""A strategy request for a traced model to its outcome: every choice of the space is estimated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.host_rates import HostRates
from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.cost_model.estimate import USABLE
from torchsplit_core.strategy.cost_model.interval import unseen
from torchsplit_core.strategy.cost_model.kernels import in_a_step
from torchsplit_core.strategy.graph_model.calibration import (
    MOST_STEPS,
    device_factors,
    run_calibration,
    step_offset,
)
from torchsplit_core.strategy.graph_model.memory import STATE_BYTES, shards
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.space import WITHOUT_SIZES, GraphSearchSpace
from torchsplit_core.strategy.graph_model.step import GraphStepModel
from torchsplit_core.strategy.search.candidate import candidate_of
from torchsplit_core.strategy.search.descriptions import (
    describe_best,
    describe_calibration,
    describe_shortfall,
    refusals_of,
)
from torchsplit_core.strategy.search.homogeneous import HOST_MEMORY, MEMORY, NOT_RUN, RefusedChoices, rank
from torchsplit_core.strategy.search.machines import Machine, read_fleet
from torchsplit_core.strategy.supported import RUNNERS, Runnable, Runner, traits_of
from torchsplit_core.values import Profile
from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.progress import Progress, ignore_progress
from torchsplit_core.values.strategy.communication import check_communication
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest
from torchsplit_core.values.strategy.run import RunStep
from torchsplit_core.values.training import ParallelConfig, StepEstimate
from torchsplit_core.values.units import GIB

MOST_DEVICES = 2**13
"""Largest fleet: every choice is estimated."""
NODES_TRIED = (2, 4, 8, 16, 32, 64, 128)
"""Multiples of a fleet's nodes that are tried in search of a sufficient fleet."""
TRACKED_MEMORY = "memory, by torch's own tracker"
"""The reason of choices that fit by the estimate but not by torch's tracker."""
MOST_TRACKED = 3
"""How many of the fastest choices torch's tracker checks, one after the other, until one fits."""

Tracker = Callable[[ParallelConfig], int | None]
"""Peak bytes of a choice's device by torch's tracker; None if it cannot tell."""


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Figures measured on this host: its cores' rates, and the seconds in which a process fetches a data sample."""

    rates: HostRates
    sample_s: float = 0.0


@dataclass(slots=True)
class _SearchResult:
    fitting: list[tuple[ParallelConfig, StepEstimate]] = field(default_factory=list)
    considered: int = 0
    refused: dict[str, RefusedChoices] = field(default_factory=dict)

    def refuse(
        self, reason: str, count: int, choices: ParallelConfig | None = None, missing: float = 0.0
    ) -> None:
        self.considered += count
        self.refused.setdefault(reason, RefusedChoices()).add(count, choices, missing)


def search_graph_strategy(
    request: StrategyRequest,
    graph: TorchGraph,
    profile: Profile | None = None,
    *,
    runners: tuple[Runner, ...] = RUNNERS,
    tracker: Tracker | None = None,
    host: HostFigures | None = None,
    runs: tuple[RunStep, ...] = (),
    progress: Progress = ignore_progress,
) -> StrategyOutcome:
    """The fastest fitting choices for a graph that all the runners support, with the refused ones and why.

    `profile`: measured rows of the model, which calibrate their device. `tracker` checks the best choices in torch.
    `runs`: steps of finished runs on a device like the fleet's, newest first, which calibrate where fewer than three
    measured steps are given.
    Raises InputFault for choices that a traced model does not allow, and for a fleet of several entries.
    """
    started = time.monotonic()
    check_communication(request.communication)
    assert isinstance(request.model, SourceSizes)
    if len(request.fleet) > 1:
        raise InputFault(
            "fleet",
            f"has {len(request.fleet)} entries; a traced model is planned on equal nodes",
            "Give one entry, or the model's sizes, from which shares of unlike nodes are found.",
        )
    machine = _machine(request, host)
    if machine.devices > MOST_DEVICES:
        raise InputFault(
            "fleet",
            f"has {machine.devices} devices, more than the {MOST_DEVICES} that are planned at once",
            "Plan a part of it.",
        )
    if request.training.precision == "fp8":
        raise InputFault(
            "training.precision",
            "is 'fp8', which a traced model does not train in",
            "Choose fp32, tf32, fp16 or bf16.",
        )
    model, job = GraphCostModel(graph), request.training
    if not sum(model.parameters):
        raise InputFault(
            "model.source", f"{quoted(request.model.source)} has no weights to train", "Choose another model."
        )
    runnable = Runnable(job.precision, traits_of(request.model), request.may_need, runners)
    space = GraphSearchSpace(model.chain, job, machine.cluster.gpus_per_node, request.fix, runnable)
    space.check()
    if not replace(space, runnable=runnable.anything()).is_empty(machine.devices):
        runnable.check_fix(request.fix)
    served = GraphCostModel(graph, served=True) if graph.experts else model
    factors = device_factors(served, machine, job, profile)
    sample_s, measured = host.sample_s if host else 0.0, request.model.measured_steps
    calibration = run_calibration(model, machine, job, runs, factors, sample_s)
    calibration = calibration[: max(0, MOST_STEPS - len(measured))]
    offset = step_offset(model, machine, job, measured, factors, calibration, sample_s)
    steps = GraphStepModel(model, machine, job, offset, factors, sample_s)
    progress(0.1, f"{machine.devices} devices")
    result, used = _search_all(steps, space, machine)
    result.fitting.sort(key=lambda item: rank(*item))
    tracked = _check_tracked(result, tracker, machine, progress)
    if not result.fitting:
        return _infeasible(steps, space, machine, result, started)
    outcome = _outcome(request, steps, result, used, tracked, started)
    message = outcome.message + describe_calibration(calibration)
    return replace(outcome, message=message, calibrated_by=calibration)


def _machine(request: StrategyRequest, host: HostFigures | None) -> Machine:
    machine = read_fleet(request.fleet, request.training.precision)[0]
    # Half precision was not measured: cores compute it in single precision or in other units.
    known = host is not None and request.training.precision in ("fp32", "tf32")
    return replace(machine, rates=in_a_step(host.rates)) if host and known else machine


def stage_starts(
    request: StrategyRequest,
    graph: TorchGraph,
    candidate: StrategyCandidate,
    host: HostFigures | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The blocks of the model, and the block with which each stage of a candidate after the first begins."""
    machine = _machine(request, host)
    steps = GraphStepModel(GraphCostModel(graph), machine, request.training, unseen())
    blocks = steps.model.chain.blocks
    return blocks, tuple(blocks[stage.start] for stage in steps.stages(candidate.choices)[1:])


def _outcome(
    request: StrategyRequest,
    steps: GraphStepModel,
    result: _SearchResult,
    used: int,
    tracked: int | None,
    started: float,
) -> StrategyOutcome:
    machine = steps.machine
    best = result.fitting[: request.top_k]
    message = describe_best(best, machine.devices, used)
    statistics: dict[str, str | int | float] = {
        "reckoned": len(result.fitting),
        "seconds": time.monotonic() - started,
        "parameters": round(sum(steps.model.parameters)),
        "blocks": len(steps.model.chain.blocks),
    }
    if machine.rates is not None:
        message += f" Cores are as fast as this host's, which were measured ({machine.rates.cpu})."
    if tracked is not None:
        statistics["tracked_gib"] = tracked / GIB
        message += f" Torch's own tracker has {tracked / GIB:.3g} GiB of tensors for it."
    if steps.factors:
        message += " Seconds are calibrated by measured rows of the profile."
    return StrategyOutcome(
        "optimal",
        tuple(_candidate(steps, choices, step) for choices, step in best),
        result.considered,
        refusals_of(result.refused),
        message,
        best[0][1].seconds,
        statistics,
    )


def _search_all(
    steps: GraphStepModel, space: GraphSearchSpace, machine: Machine
) -> tuple[_SearchResult, int]:
    """Every choice for all devices, or for the largest number of devices that a choice fits."""
    for used in range(machine.devices, 0, -1):
        result = _search_devices(steps, space, used, machine)
        if used == machine.devices:
            first = result
        if result.fitting:
            return result, used
    if space.is_empty(machine.devices):
        given = ", ".join(f"{name} {value}" for name, value in space.fix.given().items())
        raise InputFault(
            "fix" if given else "training.global_batch",
            f"{given}: no choice for at most {machine.devices} devices has all of it"
            if given
            else f"is {space.job.global_batch}, which no choice for at most {machine.devices} devices divides",
            "Free a fix, or change the batch or the fleet.",
        )
    return first, machine.devices


def _search_devices(
    steps: GraphStepModel, space: GraphSearchSpace, devices: int, machine: Machine
) -> _SearchResult:
    result = _SearchResult()
    if otherwise := space.divided_otherwise(devices):
        result.refuse(WITHOUT_SIZES, otherwise)
    for _layout, broken in space.layouts(devices):
        if broken:
            result.refuse(broken, 1)
    room = USABLE * machine.device.memory_bytes
    for choices in space.estimated_choices(devices):
        runs = space.runnable.includes(choices)
        if not runs:
            result.refuse(NOT_RUN, 1)
        missing_bytes = _host_bytes(steps, choices) - machine.host_bytes
        if choices.offload != "none" and missing_bytes > 0:
            if runs:
                result.refuse(HOST_MEMORY, 1, choices, missing_bytes)
            continue
        step = steps.estimate(choices)
        if not runs:
            result.refused[NOT_RUN].note_fastest(choices, step)
        elif step.fits:
            result.considered += 1
            result.fitting.append((choices, step))
        else:
            result.refuse(MEMORY, 1, choices, step.memory.total - room)
    return result


def _host_bytes(steps: GraphStepModel, choices: ParallelConfig) -> float:
    """Bytes of a device's states that its host keeps."""
    if choices.offload == "none":
        return 0.0
    moments = 2 if steps.job.optimizer == "adamw" else 1
    weights = max(sum(steps.model.parameters[place] for place in stage) for stage in steps.stages(choices))
    return STATE_BYTES * (2 + moments) * weights / shards(choices, steps.machine.cluster.gpus_per_node)


def _check_tracked(
    result: _SearchResult, tracker: Tracker | None, machine: Machine, progress: Progress
) -> int | None:
    """Check the best choices with torch's tracker, and refuse those that it says do not fit."""
    if tracker is None:
        return None
    # The tracker sees tensors alone, not the device's other memory.
    room = USABLE * machine.device.memory_bytes - constants().reserve_gib * GIB
    for tried in range(MOST_TRACKED):
        if not result.fitting:
            return None
        choices = result.fitting[0][0]
        progress(0.6 + 0.1 * tried, "following a step in torch")
        peak = tracker(choices)
        if peak is None or peak <= room:
            return peak
        del result.fitting[0]
        result.considered -= 1
        result.refuse(TRACKED_MEMORY, 1, choices, peak - room)
    return None


def _infeasible(
    steps: GraphStepModel, space: GraphSearchSpace, machine: Machine, result: _SearchResult, started: float
) -> StrategyOutcome:
    """Proof that nothing fits: what is missing, and a larger fleet of such nodes that would do."""
    closest = min(
        (
            refusal
            for refusal in result.refused.values()
            if refusal.closest is not None and refusal.missing_bytes
        ),
        key=lambda refusal: refusal.missing_bytes,
        default=None,
    )
    message = f"No choice fits on {machine.devices} × {machine.type}"
    if closest is not None and closest.closest is not None:
        message += f": {describe_shortfall(closest.closest, closest.missing_bytes)}, which is the least"
    message += f". {_describe_larger_fleet(steps, space, machine)}."
    statistics: dict[str, str | int | float] = {"reckoned": 0, "seconds": time.monotonic() - started}
    return StrategyOutcome(
        "infeasible", (), result.considered, refusals_of(result.refused), message, None, statistics
    )


def _describe_larger_fleet(steps: GraphStepModel, space: GraphSearchSpace, machine: Machine) -> str:
    for times in NODES_TRIED:
        devices = times * machine.devices
        wider = replace(steps, machine=replace(machine, devices=devices))
        for choices in space.choices(devices):
            if choices.micro_batch == 1 and wider.estimate(choices).fits:
                return f"{times} times as many nodes, {devices} devices, would do"
    return f"{NODES_TRIED[-1]} times as many nodes would not do either"


def _candidate(steps: GraphStepModel, choices: ParallelConfig, step: StepEstimate) -> StrategyCandidate:
    job, model = steps.job, steps.model
    # Forward once, backward twice; recomputation does not count as the model's own.
    flops = 3.0 * sum(part.flops for part in steps.figures(choices)) / choices.micro_batch * job.global_batch
    return candidate_of(steps.machine.device, job, choices, step, flops, model.tokens)
