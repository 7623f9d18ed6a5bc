"""Sensitivity of a strategy: the cost of changing each choice, of fewer nodes, of less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torchsplit_core.strategy.search.space import RECOMPUTES
from torchsplit_core.strategy.supported import OFFLOADS, SHARDS
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
"""How many of the fastest candidates are compared for the frontier of time and memory."""
VALUES = {
    "shard": SHARDS,
    "recompute": RECOMPUTES,
    "sequence_parallel": (False, True),
    "offload": OFFLOADS,
}


@dataclass(frozen=True, slots=True)
class ChoiceVariation:
    """The best step with one choice fixed to another value; None and the reason if there is none."""

    choice: str
    value: int | str | bool
    seconds: float | None
    memory_gib: float | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class FleetVariation:
    """The best step on `nodes` nodes, None if nothing fits. `devices`: those that take part."""

    nodes: int
    devices: int
    seconds: float | None
    samples_per_s: float | None
    memory_gib: float | None


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`frontier`: candidates that no other beats in both time and memory, fastest first."""

    changed: tuple[ChoiceVariation, ...]
    scaled: tuple[FleetVariation, ...]
    frontier: tuple[StrategyCandidate, ...]


def sensitivity(
    request: StrategyRequest, best: StrategyCandidate, solve: Solve, *, progress: Progress = ignore_progress
) -> Sensitivity:
    """All three. For a fleet of several entries nodes are not removed, and choices apply to every entry."""
    changed = []
    variations = list(_variations(request, best))
    for place, (choice, value) in enumerate(variations):
        progress(0.7 * place / max(1, len(variations)), f"{choice.replace('_', ' ')} {value}")
        changed.append(_vary_choice(request, choice, value, solve))
    progress(0.7, "fewer nodes")
    scaled = tuple(_scale_fleet(request, solve)) if len(request.fleet) == 1 else ()
    progress(0.9, "time against memory")
    ranked = solve(replace(request, top_k=MOST_RANKED)).candidates
    return Sensitivity(tuple(changed), scaled, tuple(_pareto_front(ranked)))


def _variations(request: StrategyRequest, best: StrategyCandidate) -> Iterator[tuple[str, int | str | bool]]:
    """Every free choice with its other values: for counts the half and the double."""
    fixed = request.fix.given()
    for choice in CHOICES:
        if choice in fixed:
            continue
        if choice == "pipeline" and (best.across):
            # The stages of all entries together are no single entry's choice.
            continue
        current = getattr(best, choice)
        if choice in VALUES:
            values: tuple[int | str | bool, ...] = VALUES[choice]
        else:
            values = tuple(count for count in (current // 2, current * 2) if count >= 1)
        yield from ((choice, value) for value in values if value != current)


def _vary_choice(
    request: StrategyRequest, choice: str, value: int | str | bool, solve: Solve
) -> ChoiceVariation:
    fix = replace(request.fix, **{choice: value})  # type: ignore[arg-type]
    try:
        outcome = solve(replace(request, fix=fix, top_k=1))
    except InputFault as fault:
        return ChoiceVariation(choice, value, None, None, fault.problem)
    if not outcome.candidates:
        return ChoiceVariation(choice, value, None, None, "nothing fits")
    candidate = outcome.candidates[0]
    return ChoiceVariation(choice, value, candidate.seconds_per_step, candidate.memory_gib.total)


def _scale_fleet(request: StrategyRequest, solve: Solve) -> Iterator[FleetVariation]:
    """1, 2, 4, … devices of a node and then nodes, up to the fleet's, with the whole batch.

    A fleet too small for the fixes has no point.
    """
    (entry,) = request.fleet
    sizes = [(1, count) for count in _doubled(entry.gpus_per_node)]
    sizes += [(count, entry.gpus_per_node) for count in _doubled(entry.nodes)[1:]]
    for nodes, per_node in sizes:
        smaller = replace(entry, nodes=nodes, gpus_per_node=per_node)
        try:
            outcome = solve(replace(request, fleet=(smaller,), top_k=1))
        except InputFault:
            continue
        if outcome.candidates:
            candidate = outcome.candidates[0]
            yield FleetVariation(
                nodes,
                candidate.devices,
                candidate.seconds_per_step,
                candidate.samples_per_s,
                candidate.memory_gib.total,
            )
        else:
            yield FleetVariation(nodes, nodes * per_node, None, None, None)


def _doubled(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def _pareto_front(ranked: tuple[StrategyCandidate, ...]) -> Iterator[StrategyCandidate]:
    least = float("inf")
    for candidate in ranked:
        if candidate.memory_gib.total < least:
            least = candidate.memory_gib.total
            yield candidate
