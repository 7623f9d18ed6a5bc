"""The result of the search over unlike nodes, as an outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchsplit_core.strategy.search.candidate import (
    candidate,
    copies_stage,
    memory_gib,
    peak_flops,
    step_flops,
)
from torchsplit_core.strategy.search.descriptions import (
    describe_choices,
    describe_shortfall,
    describe_slowdown,
    describe_smallest_fleet,
    refusals_of,
)
from torchsplit_core.strategy.search.hetero_pipeline.outcome import describe_pipeline, pipeline_candidate
from torchsplit_core.strategy.search.hetero_pipeline.search import EQUAL, HeteroPipelineSearch
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch, SearchResult
from torchsplit_core.strategy.search.uneven_copies import CopiesPart, CopiesResult, UnevenCopies
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome, StrategyRefusal


@dataclass(frozen=True, slots=True)
class EntryResult:
    """The search over one entry's nodes alone, with the whole batch."""

    search: HomogeneousSearch
    result: SearchResult

    @property
    def name(self) -> str:
        """The entry's position and type."""
        return f"fleet[{self.search.machine.fleet}], {self.search.machine.type}"

    @property
    def least_s(self) -> float:
        """Seconds of its best step; infinite if nothing fits."""
        return self.result.best[0][1].seconds if self.result.best else float("inf")

    @property
    def shortfall(self) -> str:
        """What the closest infeasible choice lacks."""
        closest, missing = self.search.closest_infeasible(self.search.machine.devices)
        return "no choice divides" if closest is None else describe_shortfall(closest, missing)


Described = tuple[StrategyCandidate, str]
"""A candidate and its description."""


def hetero_outcome(
    entries: Sequence[EntryResult],
    copies: CopiesResult,
    pipelines: HeteroPipelineSearch | None,
    top_k: int,
    started: float,
) -> StrategyOutcome:
    """The outcome of a fleet of several entries: one of them alone, copies on several, or a pipeline across them."""
    refused = tuple(
        replace(refusal, reason=f"{refusal.reason} ({entry.name})")
        for entry in entries
        for refusal in refusals_of(entry.result.refused)
    )
    statistics: dict[str, str | int | float] = {
        "reckoned": sum(entry.result.estimated for entry in entries) + copies.considered,
        "pipelines": pipelines.solved if pipelines else 0,
        "seconds": time.monotonic() - started,
    }
    considered = sum(entry.result.considered for entry in entries) + copies.considered
    searches = [entry.search for entry in entries]
    described = [_alone(entry) for entry in entries if entry.result.best]
    described += [(copies_candidate(made, searches), _describe_copies(made, entries)) for made in copies.best]
    if pipelines and pipelines.best:
        best = pipelines.best
        described.append((pipeline_candidate(best, searches), describe_pipeline(best, searches)))
    if not described:
        return _infeasible(entries, considered, refused, statistics)
    described.sort(key=lambda made: made[0].seconds_per_step)
    least = described[0][0].seconds_per_step
    bound = min(copies.bound_s, pipelines.bound_s if pipelines else least, least)
    proven = bound >= least * (1.0 - EQUAL)
    return StrategyOutcome(
        "optimal" if proven else "feasible",
        tuple(made for made, _ in described[:top_k]),
        considered,
        refused,
        _message(described, entries, None if proven else bound),
        least if proven else bound,
        statistics,
    )


def _infeasible(
    entries: Sequence[EntryResult],
    considered: int,
    refused: tuple[StrategyRefusal, ...],
    statistics: dict[str, str | int | float],
) -> StrategyOutcome:
    lacks = "; ".join(f"{entry.name}: {entry.shortfall}" for entry in entries)
    message = (
        f"No entry of the fleet trains a copy of the model: {lacks}. No pipeline across entries fits either. "
    )
    message += ". ".join(describe_smallest_fleet(entry.search) for entry in entries) + "."
    return StrategyOutcome("infeasible", (), considered, refused, message, None, statistics)


def _alone(entry: EntryResult) -> Described:
    space, machine = entry.search.space, entry.search.machine
    choices, step = entry.result.best[0]
    made = candidate(space.model, machine.device, space.job, choices, step)
    stage = copies_stage(machine, space.model, choices, step, space.job.global_batch)
    return replace(made, stages=(stage,)), f"{entry.name}: {describe_choices(choices)}"


def copies_candidate(made: UnevenCopies, searches: Sequence[HomogeneousSearch]) -> StrategyCandidate:
    """The candidate: choices and parts of the slowest entry, memory of the fullest device."""
    space = searches[0].space
    model, job = space.model, space.job
    longest = max(made.parts, key=lambda part: part.step.seconds)
    fullest = max((part.step.memory for part in made.parts), key=lambda memory: memory.total)
    machines = [searches[part.entry].machine for part in made.parts]
    base = candidate(model, searches[longest.entry].machine.device, job, longest.choices, longest.step)
    peak = sum(machine.devices * peak_flops(machine.device, job.precision) for machine in machines)
    return replace(
        base,
        batch_per_device=longest.sequences // longest.choices.data,
        seconds_per_step=made.seconds,
        low_s=made.seconds * longest.step.low_s / longest.step.seconds,
        high_s=made.seconds * longest.step.high_s / longest.step.seconds,
        tokens_per_s=job.global_batch * model.sequence / made.seconds,
        samples_per_s=job.global_batch / made.seconds,
        mfu=step_flops(model, job.global_batch) / made.seconds / peak,
        memory_gib=memory_gib(fullest),
        parts_s=replace(base.parts_s, data_communication=base.parts_s.data_communication + made.exchange_s),
        devices=sum(machine.devices for machine in machines),
        stages=tuple(
            copies_stage(machine, model, part.choices, part.step, part.sequences)
            for machine, part in zip(machines, made.parts, strict=True)
        ),
    )


def _describe_copies(made: UnevenCopies, entries: Sequence[EntryResult]) -> str:
    def words(part: CopiesPart) -> str:
        return f"{entries[part.entry].name}: {part.sequences} sequences, {describe_choices(part.choices)}"

    return "; ".join(words(part) for part in made.parts)


def _message(described: Sequence[Described], entries: Sequence[EntryResult], bound_s: float | None) -> str:
    """The best candidate, its bound if it is not proven, the runner-up, and why an entry is left out."""
    (best, words), *others = described
    message = f"{words[0].upper()}{words[1:]}" if best.across else words
    message += f": {best.seconds_per_step:.3g} s/step"
    if bound_s is not None:
        message += f", none shorter than {bound_s:.4g} s"
    if others:
        runner_up, words = others[0]
        loss = runner_up.seconds_per_step / best.seconds_per_step - 1
        message += f"; the runner-up ({words}) {describe_slowdown(loss)}"
    else:
        message += "; nothing else fits"
    taking = {stage.fleet for stage in best.stages}
    for place, entry in enumerate(entries):
        if place not in taking:
            fits = entry.least_s < float("inf")
            why = "with it a step is not shorter" if fits else entry.shortfall
            message += f". {entry.name} is left out: {why}"
    return f"{message}."
