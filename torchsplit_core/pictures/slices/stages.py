"""Stages of a plan's cut models: the position of each, its copies, and the bytes/s across the cuts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torchsplit_core.pictures.colours import FAINTEST_STAGE, FULL_STAGE, PLAIN_STAGE
from torchsplit_core.planning.problem.transfers import bytes_per_request
from torchsplit_core.values import PlannedModel, PlanOutcome, PlanRequest, Variant, tenants_on

StageKey = tuple[str, str, str]
"""Model, variant and stage."""


@dataclass(frozen=True, slots=True)
class StagePosition:
    """Stage `number` (from 1) of `count`."""

    number: int
    count: int

    @property
    def short(self) -> str:
        """The form on slices: s1/4."""
        return f"s{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class StageInstance:
    """One instance of a stage: its GPU, and the profile and first slot of its slice."""

    gpu: str
    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class FlowStage:
    """A stage with all its copies; `throughput_rps` is their sum."""

    name: str
    copies: tuple[StageInstance, ...]
    throughput_rps: float


@dataclass(frozen=True, slots=True)
class StageFlow:
    """A cut model as planned, stages in order. `bytes_per_s[i]` cross from stage i to i + 1; None: unknown."""

    model: str
    variant: str
    stages: tuple[FlowStage, ...]
    bytes_per_s: tuple[float | None, ...]


def stage_positions(plan: PlanOutcome, request: PlanRequest | None) -> dict[StageKey, StagePosition]:
    """The position of every stage of a cut variant, from the request; without one, from names that end in "1of4".

    Stages of unknown position, and of variants with a single stage, are left out.
    """
    positions = {
        (spec.name, variant.name, stage.name): StagePosition(number, len(variant.stages))
        for spec in (request.models if request else ())
        for variant in spec.variants
        if len(variant.stages) > 1
        for number, stage in enumerate(variant.stages, 1)
    }
    for *_, tenant in tenants_on(plan.gpus):
        key = (tenant.model, tenant.variant, tenant.stage)
        match = re.search(r"(?<!\d)(\d{1,4})of(\d{1,4})$", tenant.stage, re.ASCII)
        if request is None and match and 1 <= int(match[1]) <= int(match[2]) > 1:
            positions[key] = StagePosition(int(match[1]), int(match[2]))
    return positions


def shade(place: StagePosition | None) -> float:
    """Opacity of a tenant's background: faintest for the first stage, strongest for the last, a whole model between."""
    if place is None:
        return PLAIN_STAGE
    return FAINTEST_STAGE + (FULL_STAGE - FAINTEST_STAGE) * (place.number - 1) / (place.count - 1)


def stage_flows(plan: PlanOutcome, request: PlanRequest | None) -> tuple[StageFlow, ...]:
    """The models that run in stages of known order, in the plan's order of models."""
    places = stage_positions(plan, request)
    variants = {
        (spec.name, variant.name): variant
        for spec in (request.models if request else ())
        for variant in spec.variants
    }
    result = []
    for model in plan.models:
        if model.variant is None:
            continue
        staged = {
            place.number: stage
            for (name, variant, stage), place in places.items()
            if (name, variant) == (model.name, model.variant)
        }
        # If a stage is missing, the successor of the stage before it is unknown.
        if staged and len(staged) == max(
            places[model.name, model.variant, stage_name].count for stage_name in staged.values()
        ):
            result.append(_stage_flow(plan, model, staged, variants.get((model.name, model.variant))))
    return tuple(result)


def _stage_flow(
    plan: PlanOutcome, model: PlannedModel, staged: Mapping[int, str], variant: Variant | None
) -> StageFlow:
    stages, batches = [], []
    for _, name in sorted(staged.items()):
        instances = [
            (StageInstance(gpu.id, item.profile, item.start), tenant)
            for gpu, item, tenant in tenants_on(plan.gpus)
            if (tenant.model, tenant.variant, tenant.stage) == (model.name, model.variant, name)
        ]
        rate = sum(tenant.throughput_rps for _, tenant in instances)
        spent = sum(tenant.throughput_rps / tenant.batch_size for _, tenant in instances)
        stages.append(FlowStage(name, tuple(copy for copy, _ in instances), rate))
        batches.append(rate / spent if spent else None)
    carried = tuple(
        _carried_bytes_per_s(model.throughput_rps, variant, cut, batches[cut])
        for cut in range(len(stages) - 1)
    )
    return StageFlow(model.name, model.variant or "", tuple(stages), carried)


def _carried_bytes_per_s(rps: float, variant: Variant | None, cut: int, batch: float | None) -> float | None:
    """Bytes/s across a cut: requests/s · (fixed bytes / mean batch of the stage before it + bytes per request)."""
    if variant is None or cut >= len(variant.cut_bytes) or not batch:
        return None
    return rps * (variant.cut_bytes[cut] / batch + bytes_per_request(variant, cut))
