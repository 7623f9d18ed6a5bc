"""Strategies, refusals and outcomes as people read them."""

from __future__ import annotations

from collections.abc import Mapping

from torchsplit_core.training.strategy.search import (
    HOST_MEMORY,
    MEMORY,
    MOST_NODES_TRIED,
    EqualSearch,
    Refused,
)
from torchsplit_core.values.strategy.outcome import StrategyRefusal
from torchsplit_core.values.training import Choices, StepEstimate
from torchsplit_core.values.units import GIB

SHARD_WORDS = {
    "none": "states on every device",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP",
    "hsdp": "HSDP",
}

TIE = 1e-4
"""Steps that differ by less are called as long."""


def choice_words(choices: Choices) -> str:
    """A choice in a line; what is 1 or none is left out."""
    counts = (
        ("data", choices.data),
        ("tensor", choices.tensor),
        ("pipeline", choices.pipeline),
        ("context", choices.context),
        ("expert", choices.expert),
    )
    said = [f"{name} {value}" for name, value in counts if value > 1] or ["one device"]
    said.append(f"micro-batch {choices.micro_batch}")
    if choices.interleave > 1:
        said.append(f"{choices.interleave} chunks a stage")
    if choices.sequence_parallel:
        said.append("sequence parallelism")
    said.append(SHARD_WORDS[choices.shard])
    if choices.recompute != "none":
        said.append(f"{choices.recompute} recomputation")
    if choices.offload != "none":
        said.append(f"{'optimizer' if choices.offload == 'optimizer' else 'parameters'} offloaded")
    return ", ".join(said)


def loss_words(loss: float) -> str:
    """How much longer a step takes, as a share."""
    return f"takes {100 * loss:.2g} % longer" if loss > TIE else "takes as long"


def lack_words(choices: Choices, missing_bytes: float) -> str:
    """What a choice lacks on its fullest device."""
    return f"{choice_words(choices)} would need {missing_bytes / GIB:.3g} GiB more"


def refusals(found: Mapping[str, Refused]) -> tuple[StrategyRefusal, ...]:
    """What was refused and why, the most first."""
    ordered = sorted(found.items(), key=lambda item: (-item[1].count, item[0]))
    return tuple(_refusal(reason, refused) for reason, refused in ordered)


def _refusal(reason: str, refused: Refused) -> StrategyRefusal:
    if reason not in (MEMORY, HOST_MEMORY) or refused.nearest is None:
        return StrategyRefusal(reason, refused.count)
    said = lack_words(refused.nearest, refused.missing_bytes)
    if reason == HOST_MEMORY:
        said += " of the host for each device"
    return StrategyRefusal(reason, refused.count, said, refused.missing_bytes / GIB)


def best_words(best: list[tuple[Choices, StepEstimate]], devices: int, used: int) -> str:
    """The best, what the runner-up loses, and what stays idle."""
    (choices, step), *others = best
    said = f"{choice_words(choices)}: {step.seconds:.4g} s a step"
    if others:
        loss = others[0][1].seconds / step.seconds - 1
        said += f"; the runner-up ({choice_words(others[0][0])}) {loss_words(loss)}"
    else:
        said += "; nothing else fits"
    if used < devices:
        said += (
            f". {devices - used} of {devices} devices stay idle: no choice for more of them divides and fits"
        )
    return f"{said}."


def smallest_words(search: EqualSearch) -> str:
    """The smallest fleet of such nodes that would do."""
    size, nodes = search.machine.cluster.gpus_per_node, search.smallest_fleet()
    if not nodes:
        most = search.machine.devices // size + MOST_NODES_TRIED
        return f"No fleet of up to {most} nodes of {size} × {search.machine.type} would do"
    return (
        f"The smallest fleet of {search.machine.type} that would do has {nodes} nodes of {size}, "
        f"{nodes * size} devices"
    )
