"""Groups of entries beside each other as a candidate of the contract, and in words; verified without the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.strategy.search.candidate import candidate, copies_stage, peak_flops, step_flops
from torchsplit_core.strategy.search.descriptions import describe_choices
from torchsplit_core.strategy.search.hetero_data_parallel import NodeGroup, cross_group_sync_s
from torchsplit_core.strategy.search.hetero_pipeline.outcome import (
    broken_rule,
    describe_pipeline,
    pipeline_candidate,
)
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.replica_groups import Group, ReplicaGroups
from torchsplit_core.values.strategy.outcome import StrategyCandidate

ROUNDING = 1e-9


def broken_groups_rule(solution: ReplicaGroups, entries: Sequence[NodeGroup]) -> str:
    """The rule of the model that groups break, in words; "" for none. Each group is reckoned anew."""
    taking = [place for group in solution.groups for place in group.entries]
    if len(solution.groups) < 2 or len(set(taking)) < len(taking):
        return "two groups or more, each entry in one"
    space = entries[0].search.space
    if sum(group.sequences for group in solution.groups) != space.job.global_batch:
        return "the groups' parts are the batch"
    for number, group in enumerate(solution.groups):
        if fault := _broken_group(group, entries):
            return f"group {number + 1}: {fault}"
    exchange = cross_group_sync_s([entries[place] for place in taking], space.model, len(solution.groups))
    seconds = max(group.seconds for group in solution.groups) + exchange
    if abs(solution.seconds - seconds) > ROUNDING * seconds:
        return "a step is its longest group's and the exchange"
    return ""


def _broken_group(group: Group, entries: Sequence[NodeGroup]) -> str:
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


def groups_candidate(solution: ReplicaGroups, entries: Sequence[NodeGroup]) -> StrategyCandidate:
    """The candidate: choices and parts are those of the group that takes longest, memory that of the fullest device."""
    fault = broken_groups_rule(solution, entries)
    assert not fault, fault
    space = entries[0].search.space
    model, job = space.model, space.job
    candidates = [_group(group, entries) for group in solution.groups]
    longest = max(candidates, key=lambda group_candidate: group_candidate.seconds_per_step)
    data_s = longest.parts_s.data_communication + solution.exchange_s
    used = [entries[place].machine for group in solution.groups for place in group.entries]
    peak = sum(machine.devices * peak_flops(machine.device, job.precision) for machine in used)
    return replace(
        longest,
        seconds_per_step=solution.seconds,
        low_s=solution.seconds * longest.low_s / longest.seconds_per_step,
        high_s=solution.seconds * longest.high_s / longest.seconds_per_step,
        tokens_per_s=job.global_batch * model.sequence / solution.seconds,
        samples_per_s=job.global_batch / solution.seconds,
        mfu=step_flops(model, job.global_batch) / solution.seconds / peak,
        memory_gib=max(
            (group_candidate.memory_gib for group_candidate in candidates), key=lambda memory: memory.total
        ),
        parts_s=replace(longest.parts_s, data_communication=data_s),
        devices=sum(machine.devices for machine in used),
        stages=tuple(
            replace(stage, group=number)
            for number, group_candidate in enumerate(candidates, start=1)
            for stage in group_candidate.stages
        ),
    )


def _group(group: Group, entries: Sequence[NodeGroup]) -> StrategyCandidate:
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


def _searches(group: Group, entries: Sequence[NodeGroup]) -> list[HomogeneousSearch]:
    return [entry.search.with_batch(group.sequences) for entry in entries]


def describe_groups(solution: ReplicaGroups, entries: Sequence[NodeGroup]) -> str:
    """Groups in a line, each with its sequences."""
    described = []
    for group in solution.groups:
        if group.pipeline is not None:
            words = describe_pipeline(group.pipeline, _searches(group, entries))
        else:
            assert group.copies is not None, "a group is copies or a pipeline"
            machine = entries[group.entries[0]].machine
            words = f"fleet[{machine.fleet}], {machine.type}: {describe_choices(group.copies[0])}"
        described.append(f"{group.sequences} sequences by {words}")
    return f"groups beside each other: {'. Beside it '.join(described)}"
