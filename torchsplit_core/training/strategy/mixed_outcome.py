"""What the search over unlike nodes found, as an outcome."""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.training.strategy.across.nearest import nearest_words
from torchsplit_core.training.strategy.across.outcome import (
    left_out_words,
    pipeline_candidate,
    pipeline_words,
)
from torchsplit_core.training.strategy.across.search import AcrossSearch, Pipeline
from torchsplit_core.training.strategy.beside import Beside, BesideSearch
from torchsplit_core.training.strategy.beside_outcome import beside_candidate, beside_words
from torchsplit_core.training.strategy.candidate import (
    candidate,
    copies_stage,
    memory_gib,
    peak_flops,
    step_flops,
)
from torchsplit_core.training.strategy.unequal import Entry, Mixed, MixedFound
from torchsplit_core.training.strategy.words import (
    choice_words,
    lack_words,
    loss_words,
    refusals,
    smallest_words,
)
from torchsplit_core.values.strategy.outcome import (
    StrategyCandidate,
    StrategyOutcome,
    StrategyRefusal,
)
from torchsplit_core.values.training import Choices, StepEstimate, TrainingJob, Transformer


def mixed_outcome(
    found: MixedFound,
    across: AcrossSearch,
    beside: BesideSearch,
    entries: tuple[Entry, ...],
    top_k: int,
    started: float,
) -> StrategyOutcome:
    """The outcome of a fleet of several entries: copies of the model on sets of them, the best pipeline across, and
    groups beside each other where they are better than both."""
    refused = tuple(
        StrategyRefusal(f"{one.reason} ({_name(entry)})", one.count, one.nearest, one.missing_gib)
        for entry in entries
        for one in refusals(entry.refused)
    )
    statistics: dict[str, str | int | float] = {
        "reckoned": sum(entry.reckoned for entry in entries),
        "searches": sum(len(entry.found) for entry in entries),
        "pipeline_boxes": across.solved,
        "seconds": time.monotonic() - started,
    }
    considered = sum(entry.considered for entry in entries)
    space = entries[0].search.space
    made = [mixed_candidate(one, space.model, space.job) for one in found.best]
    if across.best is not None:
        made.append(pipeline_candidate(across.best, across.searches))
    if beside.best is not None:
        made.append(beside_candidate(beside.best, entries))
    if not made:
        said = f"No entry of the fleet trains a copy of the model: {_lacking(entries)}. "
        said += f"No pipeline across entries fits either: {nearest_words(across.stock)}. "
        said += ". ".join(smallest_words(entry.search) for entry in entries) + "."
        return StrategyOutcome("infeasible", (), considered, refused, said, None, statistics)
    made.sort(key=lambda one: one.seconds_per_step)
    least = made[0].seconds_per_step
    bound = min(found.bound_s, across.bound_s, beside.bound_s, least)
    proven = found.proven and across.proven(least) and beside.proven
    return StrategyOutcome(
        "optimal" if proven else "feasible",
        tuple(made[:top_k]),
        considered,
        refused,
        _message(found, across, beside.best, entries, None if proven else bound),
        least if proven else bound,
        statistics,
    )


def mixed_candidate(found: Mixed, model: Transformer, job: TrainingJob) -> StrategyCandidate:
    """A candidate: choices and parts are those of the entry that takes longest, memory that of the fullest device."""
    steps = [_step(entry, part) for entry, part in zip(found.entries, found.parts, strict=True)]
    place = max(range(len(steps)), key=lambda index: steps[index][1].seconds)
    fullest = max(steps, key=lambda step: step[1].memory.total)[1]
    choices, step = steps[place]
    base = candidate(model, found.entries[place].machine.device, job, choices, step)
    data_s = base.parts_s.data_communication + found.exchange_s
    peak = sum(
        entry.machine.devices * peak_flops(entry.machine.device, job.precision) for entry in found.entries
    )
    return replace(
        base,
        batch_per_device=found.parts[place] // choices.data,
        seconds_per_step=found.seconds,
        low_s=found.seconds * step.low_s / step.seconds,
        high_s=found.seconds * step.high_s / step.seconds,
        tokens_per_s=job.global_batch * model.sequence / found.seconds,
        samples_per_s=job.global_batch / found.seconds,
        mfu=step_flops(model, job.global_batch) / found.seconds / peak,
        memory_gib=memory_gib(fullest.memory),
        parts_s=replace(base.parts_s, data_communication=data_s),
        devices=sum(entry.machine.devices for entry in found.entries),
        stages=tuple(
            copies_stage(entry.machine, model, *_step(entry, part), part)
            for entry, part in zip(found.entries, found.parts, strict=True)
        ),
    )


def _step(entry: Entry, part: int) -> tuple[Choices, StepEstimate]:
    found = entry.best(part)
    assert found is not None, "only parts that fit are dealt"
    return found


def _name(entry: Entry) -> str:
    return f"fleet[{entry.machine.fleet}], {entry.machine.type}"


def _message(
    found: MixedFound,
    across: AcrossSearch,
    beside: Beside | None,
    entries: tuple[Entry, ...],
    bound_s: float | None,
) -> str:
    """The best, its bound where it is not proven, the runner-up, and why an entry is left out."""
    shorter = "" if bound_s is None else f", none shorter than {bound_s:.4g} s"
    pipeline = across.best
    if beside is not None:
        return _beside_message(beside, found, pipeline, entries, shorter)
    if pipeline is not None and (not found.best or pipeline.seconds < found.best[0].seconds):
        return _pipeline_message(pipeline, found, entries, shorter)
    best, *others = found.best
    said = "; ".join(
        f"{_name(entry)}: {part} sequences, {choice_words(_step(entry, part)[0])}"
        for entry, part in zip(best.entries, best.parts, strict=True)
    )
    said += f": {best.seconds:.4g} s a step{shorter}"
    next_s = min((one.seconds for one in (*others[:1], pipeline) if one is not None), default=None)
    if next_s is not None:
        names = "a pipeline across entries"
        if others and next_s == others[0].seconds:
            names = "only " + " and ".join(_name(entry) for entry in others[0].entries)
        said += f"; the runner-up ({names}) {loss_words(next_s / best.seconds - 1)}"
    for entry in entries:
        if entry not in best.entries:
            said += f". {_name(entry)} is left out: {_why(entry, best)}"
    return f"{said}."


def _beside_message(
    best: Beside, found: MixedFound, pipeline: Pipeline | None, entries: tuple[Entry, ...], shorter: str
) -> str:
    """Groups are only kept where they are better than copies and than a pipeline."""
    said = f"{beside_words(best, entries)}: {best.seconds:.4g} s a step{shorter}"
    said = said[0].upper() + said[1:]
    others = [(one.seconds, "copies of the model on each") for one in found.best[:1]]
    others += [(pipeline.seconds, "one pipeline across entries")] if pipeline else []
    if others:
        seconds, words = min(others)
        said += f"; without groups ({words}) a step {loss_words(seconds / best.seconds - 1)}"
    taking = {place for group in best.groups for place in group.entries}
    for place, entry in enumerate(entries):
        if place not in taking:
            said += f". {_name(entry)} is left out: with it a step is not shorter"
    return f"{said}."


def _pipeline_message(best: Pipeline, found: MixedFound, entries: tuple[Entry, ...], shorter: str) -> str:
    said = (
        f"{pipeline_words(best, [entry.search for entry in entries])}: {best.seconds:.4g} s a step{shorter}"
    )
    said = said[0].upper() + said[1:]
    if found.best:
        names = " and ".join(_name(entry) for entry in found.best[0].entries)
        loss = loss_words(found.best[0].seconds / best.seconds - 1)
        said += f"; the runner-up (copies of the model on {names}) {loss}"
    else:
        said += f". No entry holds a copy of the model: {_lacking(entries)}"
    for place, entry in enumerate(entries):
        if place not in best.entries:
            said += f". {_name(entry)} is left out: {left_out_words(best, entry.search)}"
    return f"{said}."


def _why(entry: Entry, best: Mixed) -> str:
    """Why an entry has no part: no choice fits, one sequence takes longer than the step, or nothing is gained."""
    if entry.least == float("inf"):
        return _lacking((entry,))
    alone = entry.seconds(1)
    if best.seconds < alone < float("inf"):
        return f"a sequence takes {alone:.3g} s there, longer than the step"
    return "with it a step is not shorter: its exchange of gradients, or the parts that divide, cost what it brings"


def _lacking(entries: tuple[Entry, ...]) -> str:
    said = []
    for entry in entries:
        nearest, missing = entry.search.nearest(entry.machine.devices)
        words = "no choice divides" if nearest is None else lack_words(nearest, missing)
        said.append(f"{_name(entry)}: {words}" if len(entries) > 1 else words)
    return "; ".join(said)
