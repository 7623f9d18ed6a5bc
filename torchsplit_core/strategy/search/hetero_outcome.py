"""What the search over unlike nodes found, as an outcome."""

from __future__ import annotations

import time
from dataclasses import replace

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
from torchsplit_core.strategy.search.hetero_data_parallel import BatchSplit, NodeGroup, SplitSearchResult
from torchsplit_core.strategy.search.hetero_pipeline.branch_and_bound import HeteroPipelineSearch, Pipeline
from torchsplit_core.strategy.search.hetero_pipeline.closest_infeasible import describe_closest
from torchsplit_core.strategy.search.hetero_pipeline.outcome import (
    describe_exclusion,
    describe_pipeline,
    pipeline_candidate,
)
from torchsplit_core.strategy.search.replica_groups import ReplicaGroups, ReplicaGroupSearch
from torchsplit_core.strategy.search.replica_groups_outcome import describe_groups, groups_candidate
from torchsplit_core.values.strategy.outcome import (
    StrategyCandidate,
    StrategyOutcome,
    StrategyRefusal,
)
from torchsplit_core.values.training import ParallelConfig, StepEstimate, TrainingJob, Transformer


def hetero_outcome(
    copies: SplitSearchResult,
    pipelines: HeteroPipelineSearch,
    groups: ReplicaGroupSearch,
    entries: tuple[NodeGroup, ...],
    top_k: int,
    started: float,
) -> StrategyOutcome:
    """The outcome of a fleet of several entries: copies of the model on sets of them, the best pipeline across, and
    groups beside each other where they are better than both."""
    refused = tuple(
        StrategyRefusal(
            f"{refusal.reason} ({_name(entry)})", refusal.count, refusal.nearest, refusal.missing_gib
        )
        for entry in entries
        for refusal in refusals_of(entry.refused)
    )
    statistics: dict[str, str | int | float] = {
        "reckoned": sum(entry.estimated for entry in entries),
        "searches": sum(len(entry.steps_by_part) for entry in entries),
        "pipeline_boxes": pipelines.solved,
        "seconds": time.monotonic() - started,
    }
    considered = sum(entry.considered for entry in entries)
    space = entries[0].search.space
    candidates = [split_candidate(split, space.model, space.job) for split in copies.best]
    if pipelines.best is not None:
        candidates.append(pipeline_candidate(pipelines.best, pipelines.searches))
    if groups.best is not None:
        candidates.append(groups_candidate(groups.best, entries))
    if not candidates:
        message = f"No entry of the fleet trains a copy of the model: {_describe_shortfalls(entries)}. "
        message += f"No pipeline across entries fits either: {describe_closest(pipelines.pool)}. "
        message += ". ".join(describe_smallest_fleet(entry.search) for entry in entries) + "."
        return StrategyOutcome("infeasible", (), considered, refused, message, None, statistics)
    candidates.sort(key=lambda made_candidate: made_candidate.seconds_per_step)
    least = candidates[0].seconds_per_step
    bound = min(copies.bound_s, pipelines.bound_s, groups.bound_s, least)
    proven = copies.proven and pipelines.proven(least) and groups.proven
    return StrategyOutcome(
        "optimal" if proven else "feasible",
        tuple(candidates[:top_k]),
        considered,
        refused,
        _message(copies, pipelines, groups.best, entries, None if proven else bound),
        least if proven else bound,
        statistics,
    )


def split_candidate(split: BatchSplit, model: Transformer, job: TrainingJob) -> StrategyCandidate:
    """A candidate: choices and parts are those of the entry that takes longest, memory that of the fullest device."""
    steps = [_step(entry, part) for entry, part in zip(split.entries, split.parts, strict=True)]
    place = max(range(len(steps)), key=lambda index: steps[index][1].seconds)
    fullest = max(steps, key=lambda step: step[1].memory.total)[1]
    choices, step = steps[place]
    base = candidate(model, split.entries[place].machine.device, job, choices, step)
    data_s = base.parts_s.data_communication + split.exchange_s
    peak = sum(
        entry.machine.devices * peak_flops(entry.machine.device, job.precision) for entry in split.entries
    )
    return replace(
        base,
        batch_per_device=split.parts[place] // choices.data,
        seconds_per_step=split.seconds,
        low_s=split.seconds * step.low_s / step.seconds,
        high_s=split.seconds * step.high_s / step.seconds,
        tokens_per_s=job.global_batch * model.sequence / split.seconds,
        samples_per_s=job.global_batch / split.seconds,
        mfu=step_flops(model, job.global_batch) / split.seconds / peak,
        memory_gib=memory_gib(fullest.memory),
        parts_s=replace(base.parts_s, data_communication=data_s),
        devices=sum(entry.machine.devices for entry in split.entries),
        stages=tuple(
            copies_stage(entry.machine, model, *_step(entry, part), part)
            for entry, part in zip(split.entries, split.parts, strict=True)
        ),
    )


def _step(entry: NodeGroup, part: int) -> tuple[ParallelConfig, StepEstimate]:
    choice_and_step = entry.best(part)
    assert choice_and_step is not None, "only parts that fit are dealt"
    return choice_and_step


def _name(entry: NodeGroup) -> str:
    return f"fleet[{entry.machine.fleet}], {entry.machine.type}"


def _message(
    copies: SplitSearchResult,
    pipelines: HeteroPipelineSearch,
    groups: ReplicaGroups | None,
    entries: tuple[NodeGroup, ...],
    bound_s: float | None,
) -> str:
    """The best, its bound where it is not proven, the runner-up, and why an entry is left out."""
    shorter = "" if bound_s is None else f", none shorter than {bound_s:.4g} s"
    pipeline = pipelines.best
    if groups is not None:
        return _groups_message(groups, copies, pipeline, entries, shorter)
    if pipeline is not None and (not copies.best or pipeline.seconds < copies.best[0].seconds):
        return _pipeline_message(pipeline, copies, entries, shorter)
    best, *others = copies.best
    message = "; ".join(
        f"{_name(entry)}: {part} sequences, {describe_choices(_step(entry, part)[0])}"
        for entry, part in zip(best.entries, best.parts, strict=True)
    )
    message += f": {best.seconds:.4g} s a step{shorter}"
    next_s = min(
        (contender.seconds for contender in (*others[:1], pipeline) if contender is not None), default=None
    )
    if next_s is not None:
        names = "a pipeline across entries"
        if others and next_s == others[0].seconds:
            names = "only " + " and ".join(_name(entry) for entry in others[0].entries)
        message += f"; the runner-up ({names}) {describe_slowdown(next_s / best.seconds - 1)}"
    for entry in entries:
        if entry not in best.entries:
            message += f". {_name(entry)} is left out: {_exclusion_reason(entry, best)}"
    return f"{message}."


def _groups_message(
    best: ReplicaGroups,
    copies: SplitSearchResult,
    pipeline: Pipeline | None,
    entries: tuple[NodeGroup, ...],
    shorter: str,
) -> str:
    """Groups are only kept where they are better than copies and than a pipeline."""
    message = f"{describe_groups(best, entries)}: {best.seconds:.4g} s a step{shorter}"
    message = message[0].upper() + message[1:]
    others = [(split.seconds, "copies of the model on each") for split in copies.best[:1]]
    others += [(pipeline.seconds, "one pipeline across entries")] if pipeline else []
    if others:
        seconds, words = min(others)
        message += f"; without groups ({words}) a step {describe_slowdown(seconds / best.seconds - 1)}"
    taking = {place for group in best.groups for place in group.entries}
    for place, entry in enumerate(entries):
        if place not in taking:
            message += f". {_name(entry)} is left out: with it a step is not shorter"
    return f"{message}."


def _pipeline_message(
    best: Pipeline, copies: SplitSearchResult, entries: tuple[NodeGroup, ...], shorter: str
) -> str:
    message = f"{describe_pipeline(best, [entry.search for entry in entries])}: {best.seconds:.4g} s a step{shorter}"
    message = message[0].upper() + message[1:]
    if copies.best:
        names = " and ".join(_name(entry) for entry in copies.best[0].entries)
        loss = describe_slowdown(copies.best[0].seconds / best.seconds - 1)
        message += f"; the runner-up (copies of the model on {names}) {loss}"
    else:
        message += f". No entry holds a copy of the model: {_describe_shortfalls(entries)}"
    for place, entry in enumerate(entries):
        if place not in best.entries:
            message += f". {_name(entry)} is left out: {describe_exclusion(best, entry.search)}"
    return f"{message}."


def _exclusion_reason(entry: NodeGroup, best: BatchSplit) -> str:
    """Why an entry has no part: no choice fits, one sequence takes longer than the step, or nothing is gained."""
    if entry.least == float("inf"):
        return _describe_shortfalls((entry,))
    alone = entry.seconds(1)
    if best.seconds < alone < float("inf"):
        return f"a sequence takes {alone:.3g} s there, longer than the step"
    return "with it a step is not shorter: its exchange of gradients, or the parts that divide, cost what it brings"


def _describe_shortfalls(entries: tuple[NodeGroup, ...]) -> str:
    described = []
    for entry in entries:
        closest, missing = entry.search.closest_infeasible(entry.machine.devices)
        words = "no choice divides" if closest is None else describe_shortfall(closest, missing)
        described.append(f"{_name(entry)}: {words}" if len(entries) > 1 else words)
    return "; ".join(described)
