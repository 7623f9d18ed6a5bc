"""Around the answer of a strategy request: what each choice costs changed, fewer nodes, less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torchsplit_core.training.strategy.space import OFFLOADS, RECOMPUTES, SHARDS
from torchsplit_core.values.errors import InputFault
from torchsplit_core.values.progress import Progress, ignore_progress
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest

Solve = Callable[[StrategyRequest], StrategyOutcome]
CHOICES = (
    "data", "tensor", "pipeline", "context", "micro_batch", "interleave", "shard", "recompute", "sequence_parallel",
    "offload",
)  # fmt: skip
MOST_RANKED = 2000
"""Of the fastest candidates, those among which none is to be beaten in time and memory."""
VALUES = {
    "shard": SHARDS,
    "recompute": RECOMPUTES,
    "sequence_parallel": (False, True),
    "offload": OFFLOADS,
}


@dataclass(frozen=True, slots=True)
class Changed:
    """The best step with one choice fixed otherwise; None and why where there is none."""

    choice: str
    value: int | str | bool
    seconds: float | None
    memory_gib: float | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Scaled:
    """The best step on so many nodes, None where nothing fits. `devices`: those that take part."""

    nodes: int
    devices: int
    seconds: float | None
    samples_per_s: float | None
    memory_gib: float | None


@dataclass(frozen=True, slots=True)
class Study:
    """`frontier`: candidates that none beats in both time and memory, the fastest first."""

    changed: tuple[Changed, ...]
    scaled: tuple[Scaled, ...]
    frontier: tuple[StrategyCandidate, ...]


def study(
    request: StrategyRequest, best: StrategyCandidate, solve: Solve, *, progress: Progress = ignore_progress
) -> Study:
    """All three. Of a fleet of several entries nodes are not taken away, and choices stand for every entry."""
    changed = []
    asked = list(_otherwise(request, best))
    for place, (choice, value) in enumerate(asked):
        progress(0.7 * place / max(1, len(asked)), f"{choice.replace('_', ' ')} {value}")
        changed.append(_with(request, choice, value, solve))
    progress(0.7, "fewer nodes")
    scaled = tuple(_scaled(request, solve)) if len(request.fleet) == 1 else ()
    progress(0.9, "time against memory")
    ranked = solve(replace(request, top_k=MOST_RANKED)).candidates
    return Study(tuple(changed), scaled, tuple(_unbeaten(ranked)))


def _otherwise(request: StrategyRequest, best: StrategyCandidate) -> Iterator[tuple[str, int | str | bool]]:
    """Every choice that is not fixed with its other values: of counts the half and the double."""
    fixed = request.fix.given()
    for choice in CHOICES:
        if choice in fixed:
            continue
        if choice == "pipeline" and (best.across or best.beside):
            # The stages of all entries are no entry's choice.
            continue
        own = getattr(best, choice)
        if choice in VALUES:
            values: tuple[int | str | bool, ...] = VALUES[choice]
        else:
            values = tuple(one for one in (own // 2, own * 2) if one >= 1)
        yield from ((choice, value) for value in values if value != own)


def _with(request: StrategyRequest, choice: str, value: int | str | bool, solve: Solve) -> Changed:
    fix = replace(request.fix, **{choice: value})  # type: ignore[arg-type]
    try:
        found = solve(replace(request, fix=fix, top_k=1))
    except InputFault as fault:
        return Changed(choice, value, None, None, fault.problem)
    if not found.candidates:
        return Changed(choice, value, None, None, "nothing fits")
    one = found.candidates[0]
    return Changed(choice, value, one.seconds_per_step, one.memory_gib.total)


def _scaled(request: StrategyRequest, solve: Solve) -> Iterator[Scaled]:
    """1, 2, 4, … devices of a node and then nodes, up to the fleet's, with the whole batch.

    What is fixed may ask for more devices than there are then: such a fleet has no point.
    """
    (entry,) = request.fleet
    sizes = [(1, count) for count in _doubled(entry.gpus_per_node)]
    sizes += [(count, entry.gpus_per_node) for count in _doubled(entry.nodes)[1:]]
    for nodes, a_node in sizes:
        smaller = replace(entry, nodes=nodes, gpus_per_node=a_node)
        try:
            found = solve(replace(request, fleet=(smaller,), top_k=1))
        except InputFault:
            continue
        if found.candidates:
            one = found.candidates[0]
            yield Scaled(nodes, one.devices, one.seconds_per_step, one.samples_per_s, one.memory_gib.total)
        else:
            yield Scaled(nodes, nodes * a_node, None, None, None)


def _doubled(most: int) -> list[int]:
    """1, 2, 4, … and the most itself."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def _unbeaten(ranked: tuple[StrategyCandidate, ...]) -> Iterator[StrategyCandidate]:
    least = float("inf")
    for one in ranked:
        if one.memory_gib.total < least:
            least = one.memory_gib.total
            yield one
