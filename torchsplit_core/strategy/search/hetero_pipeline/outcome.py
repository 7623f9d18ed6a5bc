"""A pipeline across entries as a candidate of the contract, and in words; verified without the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from torchsplit_core.strategy.cost_model.estimate import USABLE
from torchsplit_core.strategy.cost_model.interval import unseen
from torchsplit_core.strategy.search.candidate import memory_gib, peak_flops, stage_fields, step_flops
from torchsplit_core.strategy.search.descriptions import describe_choices
from torchsplit_core.strategy.search.hetero_pipeline.search import Pipeline, Segment
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig, StageRole
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyParts, StrategyStage
from torchsplit_core.values.units import GIB

ROUNDING = 1e-9
Stage = tuple[StageConfig, int, StageRole]
"""A stage's configuration, its layers, and its role."""


def broken_rule(pipeline: Pipeline, searches: Sequence[HomogeneousSearch]) -> str:
    """The rule of the model that a pipeline breaks, in words; "" for none. Uses nothing of the search."""
    space = searches[0].space
    if len(set(pipeline.entries)) < max(2, len(pipeline.entries)):
        return "two entries or more, each once"
    if sum(sum(segment.layers) for segment in pipeline.segments) != space.model.layers:
        return "the stages have every layer"
    if pipeline.sequences * pipeline.micro_batches != space.job.global_batch:
        return "the micro-batches are the batch"
    stages = stages_of(pipeline)
    for number, (way, layers, place) in enumerate(stages):
        if place.in_flight != len(stages) - number or (place.first, place.last) != (
            number == 0,
            number == len(stages) - 1,
        ):
            return f"stage {number + 1} stands where it is reckoned"
        if layers < 1:
            return f"stage {number + 1} has a layer"
        if way.memory(layers, place).total > USABLE * way.search.machine.device.memory_bytes * (1 + ROUNDING):
            return f"stage {number + 1} fits its devices"
        if way.host_bytes(layers, place.first or place.last) > way.search.machine.host_bytes * (1 + ROUNDING):
            return f"stage {number + 1} fits its hosts"
    common = {replace(segment.config.choices, pipeline=1) for segment in pipeline.segments}
    if len(common) > 1:
        return "the stages share their choices"
    for entry, segment in zip(pipeline.entries, pipeline.segments, strict=True):
        choices = segment.config.choices
        if (
            segment.config.search.machine is not searches[entry].machine
            or len(segment.layers) != choices.pipeline
        ):
            return "an entry has its own ways"
        if choices.devices != searches[entry].machine.devices:
            return "all devices of an entry take part"
        if choices.micro_batch * choices.data != pipeline.sequences:
            return "a stage's devices share a micro-batch evenly"
    return ""


def stages_of(pipeline: Pipeline) -> list[Stage]:
    """Every stage, in pipeline order."""
    return [
        (segment.config, layers, place)
        for segment in pipeline.segments
        for layers, place in zip(segment.layers, segment.roles, strict=True)
    ]


def pipeline_candidate(pipeline: Pipeline, searches: Sequence[HomogeneousSearch]) -> StrategyCandidate:
    """The candidate: its choices are those of the longest stage's entry, `pipeline` counts the stages of all."""
    fault = broken_rule(pipeline, searches)
    assert not fault, fault
    space = searches[0].space
    model, job = space.model, space.job
    stages = stages_of(pipeline)
    longest = max(stages, key=lambda stage: stage[0].stage_s(stage[1], stage[2]))
    memories = [way.memory(layers, place) for way, layers, place in stages]
    used = [searches[entry].machine for entry in pipeline.entries]
    peak = sum(machine.devices * peak_flops(machine.device, job.precision) for machine in used)
    ends, seconds, choices = unseen(), pipeline.seconds, longest[0].choices
    return StrategyCandidate(
        **asdict(replace(choices, pipeline=len(stages))),
        micro_batches=pipeline.micro_batches,
        batch_per_device=job.global_batch // choices.data,
        seconds_per_step=seconds * ends.factor,
        low_s=seconds * ends.factor * ends.low,
        high_s=seconds * ends.factor * ends.high,
        tokens_per_s=job.global_batch * model.sequence / seconds,
        samples_per_s=job.global_batch / seconds,
        mfu=step_flops(model, job.global_batch) / seconds / peak,
        memory_gib=memory_gib(max(memories, key=lambda memory: memory.total)),
        fits=True,
        parts_s=_parts(pipeline, stages, longest),
        devices=sum(machine.devices for machine in used),
        stages=tuple(_stage_outcome(pipeline, place, searches) for place in range(len(pipeline.entries))),
    )


def _parts(pipeline: Pipeline, stages: list[Stage], longest: Stage) -> StrategyParts:
    """The parts of the longest stage's micro-batches; what the other stages take once is the bubble."""
    way, layers, place = longest
    m, layer = pipeline.micro_batches, way.layer
    exchanged = layers * (layer.tensor + layer.context)
    sent = way.far_s if place.far else way.near_s
    longest_s = way.stage_s(layers, place)
    after = max((config.after_s(count, where) for config, count, where in stages), key=sum)
    return StrategyParts(
        compute=m * (longest_s - exchanged - sent),
        tensor_communication=m * exchanged,
        pipeline_bubble=max(0.0, pipeline.sum_s - longest_s),
        pipeline_communication=m * sent,
        data_communication=after[0],
        optimizer=after[1] + pipeline.fixed_s,
    )


def _stage_outcome(pipeline: Pipeline, number: int, searches: Sequence[HomogeneousSearch]) -> StrategyStage:
    segment, machine = pipeline.segments[number], searches[pipeline.entries[number]].machine
    choices = segment.config.choices
    before = sum(sum(other.layers) for other in pipeline.segments[:number])
    times, memories = _stage_figures(segment)
    after = max(
        sum(segment.config.after_s(layers, place))
        for layers, place in zip(segment.layers, segment.roles, strict=True)
    )
    return StrategyStage(
        fleet=machine.fleet,
        type=machine.type,
        devices=machine.devices,
        **stage_fields(choices),
        start_layer=before + 1,
        end_layer=before + sum(segment.layers),
        layers_per_stage=segment.layers,
        sequences=pipeline.sequences * pipeline.micro_batches,
        batch_per_device=pipeline.sequences * pipeline.micro_batches // choices.data,
        memory_gib=max(memories),
        seconds=pipeline.micro_batches * max(times) + after,
        memory_gib_per_stage=memories,
        seconds_per_stage=times,
    )


def _stage_figures(segment: Segment) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """For each stage the seconds of a micro-batch, and the GiB on a device."""
    stages = tuple(zip(segment.layers, segment.roles, strict=True))
    times = tuple(segment.config.stage_s(layers, place) for layers, place in stages)
    return times, tuple(segment.config.memory(layers, place).total / GIB for layers, place in stages)


def describe_pipeline(pipeline: Pipeline, searches: Sequence[HomogeneousSearch]) -> str:
    """A pipeline in one line: the entries in their order with layers, stages and choices."""
    described, before = [], 0
    for entry, segment in zip(pipeline.entries, pipeline.segments, strict=True):
        machine, choices = searches[entry].machine, segment.config.choices
        layers = sum(segment.layers)
        first, last = before + 1, before + layers
        span = f"layers {first} to {last}" if layers > 1 else f"layer {first}"
        stages = f"{choices.pipeline} stages" if choices.pipeline > 1 else "one stage"
        ways = describe_choices(replace(choices, pipeline=1))
        described.append(f"fleet[{machine.fleet}], {machine.type}: {span} in {stages}, {ways}")
        before = last
    return f"a pipeline across entries, {pipeline.micro_batches} micro-batches: {'; '.join(described)}"
