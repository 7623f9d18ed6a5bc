"""Pareto-optimal candidates of a model for several numbers of stages.

A candidate is dominated by another that is no worse in the objective, bytes across cuts and peak memory of a stage, and
better in one of them. A planner or a person chooses among the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.partitioning.candidates import objective_value, rank_distinct, replace_candidates
from torchsplit_core.partitioning.provider import PartitionProvider
from torchsplit_core.values import InputFault, PartitionCandidate, PartitionOutcome, Progress, ignore_progress
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.partition import Objective

CANDIDATES_PER_STAGE_COUNT = 20
"""Candidates for each number of stages."""


@dataclass(frozen=True, slots=True)
class ParetoOutcome:
    """`candidates`: the undominated ones, best first; and the outcome for each number of stages, with its bound."""

    candidates: tuple[PartitionCandidate, ...]
    outcomes: Mapping[int, PartitionOutcome]

    @property
    def combined(self) -> PartitionOutcome:
        """All in one outcome: bound, gap and status are those of the largest number of stages.

        Its candidates include those with fewer stages, so the bound holds for every candidate.
        """
        largest = self.outcomes[max(self.outcomes)]
        return replace_candidates(largest, self.candidates) if self.candidates else largest


def pareto_candidates(
    provider: PartitionProvider,
    *,
    stages: Sequence[int] = (1, 2, 3, 4),
    link_gb_per_s: float | None = None,
    memory_bytes: int | None = None,
    time_limit_s: float = 60.0,
    objective: Objective = "throughput",
    time_factors: tuple[float, ...] | None = None,
    progress: Progress = ignore_progress,
) -> ParetoOutcome:
    """Cut a model into at most k stages for every k of `stages`, and keep the undominated candidates.

    The time limit is for all of them together. `time_factors` are of particular devices, so `stages` is then their
    number alone. Raises InputFault for an empty or invalid list of stages, and as `PartitionProvider` and
    `solve_partition` do.
    """
    if not stages or min(stages) < 1 or len(set(stages)) < len(stages):
        raise InputFault(
            "stages", f"{quoted(list(stages))} are no distinct numbers from 1 on", "Give for example 1, 2, 3."
        )
    outcomes: dict[int, PartitionOutcome] = {}
    candidates: list[PartitionCandidate] = []
    for done, count in enumerate(sorted(stages)):

        def report(share: float, line: str, done: int = done, count: int = count) -> None:
            progress((done + share) / len(stages), f"{count} stages: {line}")

        request = provider.request(
            count,
            CANDIDATES_PER_STAGE_COUNT,
            link_gb_per_s,
            memory_bytes,
            time_limit_s / len(stages),
            objective,
            time_factors,
        )
        outcome = provider.solve(request, report)
        if outcome.candidates and memory_bytes is None:
            regions = provider.region_candidates(request)
            all_candidates = (*outcome.candidates, *regions)
            outcome = replace_candidates(
                outcome, rank_distinct(all_candidates, len(all_candidates), objective)
            )
        outcomes[count] = outcome
        candidates += outcome.candidates
    return ParetoOutcome(undominated(candidates, objective), outcomes)


def undominated(
    candidates: Iterable[PartitionCandidate], objective: Objective = "throughput"
) -> tuple[PartitionCandidate, ...]:
    """The distinct undominated candidates, best by the objective first; of equal figures the first."""
    ranked = sorted(candidates, key=lambda c: (*figures(c, objective), len(c.stages), c.stages))
    front: list[PartitionCandidate] = []
    for candidate in ranked:  # whatever dominates it comes before it
        candidate_figures = figures(candidate, objective)
        if not any(
            all(a <= b for a, b in zip(figures(better, objective), candidate_figures, strict=True))
            for better in front
        ):
            front.append(candidate)
    return tuple(front)


def figures(candidate: PartitionCandidate, objective: Objective) -> tuple[float, int, int]:
    """The compared figures: ms by the objective, bytes across all cuts, peak bytes of the largest stage."""
    return objective_value(candidate, objective), sum(candidate.cut_bytes), max(candidate.peak_memory_bytes)
