"""Strategies, refusals and outcomes in words."""

from __future__ import annotations

from collections.abc import Mapping

from torchsplit_core.strategy.search.homogeneous import (
    HOST_MEMORY,
    MEMORY,
    MOST_NODES_TRIED,
    NOT_RUN,
    HomogeneousSearch,
    RefusedChoices,
)
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.strategy.outcome import CalibrationRun, StrategyRefusal
from torchsplit_core.values.training import ParallelConfig, StepEstimate
from torchsplit_core.values.units import GIB

SHARD_WORDS = {
    "none": "states on every device",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP",
    "hsdp": "HSDP",
}

TIE = 1e-4
"""Steps with a smaller relative difference are described as equally long."""


def describe_choices(choices: ParallelConfig) -> str:
    """A choice in one line, without values that are 1 or none."""
    counts = (
        ("data", choices.data),
        ("tensor", choices.tensor),
        ("pipeline", choices.pipeline),
        ("context", choices.context),
        ("expert", choices.expert),
    )
    phrases = [f"{name} {value}" for name, value in counts if value > 1] or ["one device"]
    phrases.append(f"micro-batch {choices.micro_batch}")
    if choices.interleave > 1:
        phrases.append(f"{choices.interleave} chunks a stage")
    if choices.sequence_parallel:
        phrases.append("sequence parallelism")
    phrases.append(SHARD_WORDS[choices.shard])
    if choices.recompute != "none":
        phrases.append(f"{choices.recompute} recomputation")
    if choices.offload != "none":
        phrases.append(f"{'optimizer' if choices.offload == 'optimizer' else 'parameters'} offloaded")
    return ", ".join(phrases)


def describe_slowdown(loss: float) -> str:
    """How much longer a step takes, as a share."""
    return f"takes {100 * loss:.2g} % longer" if loss > TIE else "takes as long"


def describe_shortfall(choices: ParallelConfig, missing_bytes: float) -> str:
    """What a choice lacks on its fullest device."""
    return f"{describe_choices(choices)} would need {missing_bytes / GIB:.3g} GiB more"


def refusals_of(refused_by_reason: Mapping[str, RefusedChoices]) -> tuple[StrategyRefusal, ...]:
    """Refused choices by reason, most frequent first."""
    ordered = sorted(refused_by_reason.items(), key=lambda item: (-item[1].count, item[0]))
    return tuple(_refusal(reason, refused) for reason, refused in ordered)


def _refusal(reason: str, refused: RefusedChoices) -> StrategyRefusal:
    if reason == NOT_RUN and refused.closest is not None:
        nearest = f"{describe_choices(refused.closest)}: {refused.fastest_s:.3g} s/step"
        return StrategyRefusal(reason, refused.count, nearest)
    if reason not in (MEMORY, HOST_MEMORY) or refused.closest is None:
        return StrategyRefusal(reason, refused.count)
    shortfall = describe_shortfall(refused.closest, refused.missing_bytes)
    if reason == HOST_MEMORY:
        shortfall += " of the host for each device"
    return StrategyRefusal(reason, refused.count, shortfall, refused.missing_bytes / GIB)


def describe_best(best: list[tuple[ParallelConfig, StepEstimate]], devices: int, used: int) -> str:
    """The best choice, how much slower the runner-up is, and how many devices stay idle."""
    (choices, step), *others = best
    message = f"{describe_choices(choices)}: {step.seconds:.3g} s/step"
    if others:
        loss = others[0][1].seconds / step.seconds - 1
        message += f"; the runner-up ({describe_choices(others[0][0])}) {describe_slowdown(loss)}"
    else:
        message += "; nothing else fits"
    if used < devices:
        message += (
            f". {devices - used} of {devices} devices stay idle: no choice for more of them divides and fits"
        )
    return f"{message}."


def describe_calibration(runs: tuple[CalibrationRun, ...]) -> str:
    """Which finished runs calibrated the estimates, and by what; nothing without any."""
    if not runs:
        return ""
    each = "; ".join(
        f"{quoted(run.run)}, finished {run.finished}, {run.global_batch} samples on {run.devices} "
        f"device{'s' * (run.devices > 1)}: {1e3 * run.seconds:.3g} ms, estimated {1e3 * run.estimated_s:.3g} ms"
        for run in runs
    )
    return f" Seconds are calibrated by the measured steps of finished runs on this host ({each})."


def describe_smallest_fleet(search: HomogeneousSearch) -> str:
    """The smallest fleet of such nodes that would suffice."""
    size, nodes = search.machine.cluster.gpus_per_node, search.smallest_fleet()
    if not nodes:
        most = search.machine.devices // size + MOST_NODES_TRIED
        return f"No fleet of up to {most} nodes of {size} × {search.machine.type} would do"
    return (
        f"The smallest fleet of {search.machine.type} that would do has {nodes} nodes of {size}, "
        f"{nodes * size} devices"
    )
