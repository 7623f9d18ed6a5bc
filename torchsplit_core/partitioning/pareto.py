"""Candidates of a model for several numbers of stages, and which of them nothing beats in every respect.

A candidate is dominated by another that is no worse in largest load, bytes across cuts and peak
memory of a stage, and better in one. What is left is the choice a planner or a person has. Every
one carries the time of its stages at each batch size that the whole model was profiled at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.graph import TorchGraph
from torchsplit_core.partitioning.provider import PartitionProvider
from torchsplit_core.values import (
    InputFault,
    PartitionCandidate,
    PartitionOutcome,
    Profile,
    Progress,
    ignore_progress,
)

_OFFERED = 20  # candidates looked at for each number of stages


@dataclass(frozen=True, slots=True)
class ParetoCandidate:
    """A candidate that none dominates, with what the profile says of its stages.

    `times_ms` has the stages' times by batch size, transfers apart; they add up to the whole
    model's latency. `batch_sensitivity` is how a stage's time grows with the batch, from its
    smallest to its largest: 0 not at all, 1 in proportion; None where one batch size is known.
    """

    candidate: PartitionCandidate
    times_ms: Mapping[int, tuple[float, ...]]
    batch_sensitivity: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ParetoOutcome:
    """`candidates` by largest load, and the outcome for each number of stages, with its bound."""

    candidates: tuple[ParetoCandidate, ...]
    outcomes: Mapping[int, PartitionOutcome]


def pareto_candidates(
    graph: TorchGraph,
    profile: Profile,
    *,
    stages: Sequence[int] = (1, 2, 3, 4),
    link_gb_per_s: float | None = None,
    memory_bytes: int | None = None,
    time_limit_s: float = 60.0,
    progress: Progress = ignore_progress,
) -> ParetoOutcome:
    """Cut a model into at most k stages for every k of `stages` and keep what nothing dominates.

    The time limit is for all of them together. Raises InputFault for an empty or false list of
    stages, and as `PartitionProvider` and `solve_partition` do.
    """
    if not stages or min(stages) < 1 or len(set(stages)) < len(stages):
        raise InputFault(
            "stages", list(stages), "different numbers of stages, each 1 or more", "Give 1 2 3 4 for example."
        )
    provider = PartitionProvider(graph, profile)
    outcomes: dict[int, PartitionOutcome] = {}
    found: list[PartitionCandidate] = []
    for done, count in enumerate(stages):

        def tell(share: float, line: str, done: int = done, count: int = count) -> None:
            progress((done + share) / len(stages), f"{count} stages: {line}")

        request = provider.request(count, _OFFERED, link_gb_per_s, memory_bytes, time_limit_s / len(stages))
        outcomes[count] = provider.solve(request, tell)
        found += outcomes[count].candidates
        if outcomes[count].candidates and memory_bytes is None:
            found += provider.region_candidates(request)
    kept = undominated(found)
    return ParetoOutcome(tuple(_with_times(provider, candidate) for candidate in kept), outcomes)


def undominated(found: Iterable[PartitionCandidate]) -> tuple[PartitionCandidate, ...]:
    """The distinct candidates that no other dominates, by largest load; of equal figures the first."""
    ranked = sorted(found, key=lambda c: (*_figures(c), len(c.stages), c.stages))
    kept: list[PartitionCandidate] = []
    for candidate in ranked:  # whatever dominates it comes before it
        own = _figures(candidate)
        if not any(all(a <= b for a, b in zip(_figures(one), own, strict=True)) for one in kept):
            kept.append(candidate)
    return tuple(kept)


def _figures(candidate: PartitionCandidate) -> tuple[float, int, int]:
    return candidate.max_load_ms, sum(candidate.cut_bytes), max(candidate.peak_memory_bytes)


def stage_times(
    provider: PartitionProvider, candidate: PartitionCandidate
) -> Mapping[int, tuple[float, ...]]:
    """Times of the stages in ms by batch size: the whole model's latency there, by the nodes' shares.

    Rows are those of the device, slice and processes of the reference row. The shares are those
    timed at the batch size, else at the timed one nearest in ratio.
    """
    reference = provider.row
    device = (reference.gpu_type, reference.profile, reference.processes, reference.device)
    latencies = {
        row.batch_size: row.latency_ms
        for row in provider.profile.rows
        if row.stage == "whole"
        and (row.gpu_type, row.profile, row.processes, row.device) == device
        and (row.basis == reference.basis or row is reference)
    }
    timed = sorted({batch for node in provider.profile.nodes for batch in node.time_shares})
    found: dict[int, tuple[float, ...]] = {}
    for batch, latency in sorted(latencies.items()):
        nearest = min(timed, key=lambda b: (abs(math.log(b / batch)), b)) if timed else None
        shares = {
            node.id: node.time_share if nearest is None else node.time_shares.get(nearest, node.time_share)
            for node in provider.profile.nodes
        }
        parts = [math.fsum(shares.get(name, 0.0) for name in stage) for stage in candidate.stages]
        whole = math.fsum(parts)
        found[batch] = tuple(latency * part / whole for part in parts) if whole > 0 else (0.0,) * len(parts)
    return found


def _with_times(provider: PartitionProvider, candidate: PartitionCandidate) -> ParetoCandidate:
    times = stage_times(provider, candidate)
    return ParetoCandidate(candidate, times, tuple(_growth(times, i) for i in range(len(candidate.stages))))


def _growth(times_ms: Mapping[int, tuple[float, ...]], stage: int) -> float | None:
    small, large = min(times_ms), max(times_ms)
    first, last = times_ms[small][stage], times_ms[large][stage]
    if small == large or not (first > 0 and last > 0):
        return None
    return math.log(last / first) / math.log(large / small)
