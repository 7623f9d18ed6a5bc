"""Groups of entries beside each other as a candidate of the contract, and in words; verified without the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.training.strategy.across.outcome import broken_rule, pipeline_candidate, pipeline_words
from torchsplit_core.training.strategy.beside import Beside, Group
from torchsplit_core.training.strategy.candidate import candidate, copies_stage, peak_flops, step_flops
from torchsplit_core.training.strategy.search import EqualSearch
from torchsplit_core.training.strategy.unequal import Entry, exchange_s
from torchsplit_core.training.strategy.words import choice_words
from torchsplit_core.values.strategy.outcome import StrategyCandidate

ROUNDING = 1e-9


def broken_groups_rule(found: Beside, entries: Sequence[Entry]) -> str:
    """The rule of the model that groups break, in words; "" for none. Each group is reckoned anew."""
    taking = [place for group in found.groups for place in group.entries]
    if len(found.groups) < 2 or len(set(taking)) < len(taking):
        return "two groups or more, each entry in one"
    space = entries[0].search.space
    if sum(group.sequences for group in found.groups) != space.job.global_batch:
        return "the groups' parts are the batch"
    for number, group in enumerate(found.groups):
        if fault := _broken_group(group, entries):
            return f"group {number + 1}: {fault}"
    exchange = exchange_s([entries[place] for place in taking], space.model, len(found.groups))
    seconds = max(group.seconds for group in found.groups) + exchange
    if abs(found.seconds - seconds) > ROUNDING * seconds:
        return "a step is its longest group's and the exchange"
    return ""


def _broken_group(group: Group, entries: Sequence[Entry]) -> str:
    if group.pipeline is not None:
        if set(group.pipeline.entries) != set(group.entries):
            return "its entries are those of its pipeline"
        fault = broken_rule(group.pipeline, _searches(group, entries))
        same = abs(group.seconds - group.pipeline.seconds) <= ROUNDING * group.seconds
        return fault or ("" if same else "it takes what its pipeline takes")
    (place,) = group.entries
    assert group.copies is not None, "a group is copies or a pipeline"
    choices, search = group.copies[0], entries[place].search.with_batch(group.sequences)
    step = search.estimate(choices)
    if choices.devices != search.machine.devices or not step.fits:
        return "its copies fit, on all devices of the entry"
    if search.host_bytes(choices) > search.machine.host_bytes * (1 + ROUNDING):
        return "its copies fit the hosts"
    return (
        ""
        if abs(step.seconds - group.seconds) <= ROUNDING * step.seconds
        else "it takes what its copies take"
    )


def beside_candidate(found: Beside, entries: Sequence[Entry]) -> StrategyCandidate:
    """The candidate: choices and parts are those of the group that takes longest, memory that of the fullest device."""
    fault = broken_groups_rule(found, entries)
    assert not fault, fault
    space = entries[0].search.space
    model, job = space.model, space.job
    made = [_group(group, entries) for group in found.groups]
    longest = max(made, key=lambda one: one.seconds_per_step)
    data_s = longest.parts_s.data_communication + found.exchange_s
    used = [entries[place].machine for group in found.groups for place in group.entries]
    peak = sum(machine.devices * peak_flops(machine.device, job.precision) for machine in used)
    return replace(
        longest,
        seconds_per_step=found.seconds,
        low_s=found.seconds * longest.low_s / longest.seconds_per_step,
        high_s=found.seconds * longest.high_s / longest.seconds_per_step,
        tokens_per_s=job.global_batch * model.sequence / found.seconds,
        samples_per_s=job.global_batch / found.seconds,
        mfu=step_flops(model, job.global_batch) / found.seconds / peak,
        memory_gib=max((one.memory_gib for one in made), key=lambda memory: memory.total),
        parts_s=replace(longest.parts_s, data_communication=data_s),
        devices=sum(machine.devices for machine in used),
        stages=tuple(
            replace(stage, group=number) for number, one in enumerate(made, start=1) for stage in one.stages
        ),
    )


def _group(group: Group, entries: Sequence[Entry]) -> StrategyCandidate:
    """A group alone, with its part of the batch."""
    if group.pipeline is not None:
        return pipeline_candidate(group.pipeline, _searches(group, entries))
    (place,) = group.entries
    assert group.copies is not None, "a group is copies or a pipeline"
    choices, step = group.copies
    search = entries[place].search.with_batch(group.sequences)
    model, machine = search.space.model, search.machine
    made = candidate(model, machine.device, search.space.job, choices, step)
    stage = copies_stage(machine, model, choices, step, group.sequences)
    return replace(made, stages=(stage,))


def _searches(group: Group, entries: Sequence[Entry]) -> list[EqualSearch]:
    return [entry.search.with_batch(group.sequences) for entry in entries]


def beside_words(found: Beside, entries: Sequence[Entry]) -> str:
    """Groups in a line, each with its sequences."""
    said = []
    for group in found.groups:
        if group.pipeline is not None:
            words = pipeline_words(group.pipeline, _searches(group, entries))
        else:
            assert group.copies is not None, "a group is copies or a pipeline"
            machine = entries[group.entries[0]].machine
            words = f"fleet[{machine.fleet}], {machine.type}: {choice_words(group.copies[0])}"
        said.append(f"{group.sequences} sequences by {words}")
    return f"groups beside each other: {'. Beside it '.join(said)}"
