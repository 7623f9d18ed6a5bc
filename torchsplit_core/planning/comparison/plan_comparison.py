"""Two plans compared: which slices change, which models gain or lose, what must be drained first.

The plans may answer different requests. GPUs of one type are matched so that the fewest slices change (gpu_matching);
a GPU with another id in the new plan is renumbered, not changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.planning.comparison.changes import Drain, GpuChange, ModelChange, SliceChange
from torchsplit_core.planning.comparison.description import describe_changes
from torchsplit_core.planning.comparison.gpu_matching import match_gpus, tenant_key
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import InputFault, PlannedGpu, PlannedModel, PlannedSlice, PlanOutcome, Tenant


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """All GPUs and models of both plans, and the differences as sentences (`lines`)."""

    gpus: tuple[GpuChange, ...]
    models: tuple[ModelChange, ...]
    drains: tuple[Drain, ...]
    lines: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing but the numbering of equal GPUs differs."""
        return not any(gpu.changed for gpu in self.gpus) and all(
            model.direction == "same" and not model.latency_ms and not model.normalised
            for model in self.models
        )

    @property
    def renumbered(self) -> tuple[tuple[str, str], ...]:
        """(id in the old plan, id in the new plan) of the GPUs whose ids differ."""
        return tuple(
            (gpu.before_id, gpu.after_id)
            for gpu in self.gpus
            if gpu.before_id is not None and gpu.after_id is not None and gpu.before_id != gpu.after_id
        )


def compare(before: PlanOutcome, after: PlanOutcome) -> PlanComparison:
    """From plan `before` to plan `after`. Raises InputFault if one of the outcomes has no plan."""
    for name, outcome in (("before", before), ("after", after)):
        if outcome.status not in ("optimal", "feasible"):
            raise InputFault(
                name,
                f"has no plan to compare: its search ended {outcome.status}",
                "Choose a solved scenario.",
            )
    gpus = tuple(_gpu_change(first, second) for first, second in match_gpus(before.gpus, after.gpus))
    models = _model_changes(before.models, after.models)
    drains = tuple(
        Drain(gpu.before_id, item.profile, item.start, item.leaving, item.change == "gone")
        for gpu in gpus
        if gpu.before_id is not None
        for item in gpu.slices
        if item.leaving
    )
    return PlanComparison(gpus, models, drains, describe_changes(gpus, models, drains))


def _gpu_change(before: PlannedGpu | None, after: PlannedGpu | None) -> GpuChange:
    known = before or after
    assert known is not None
    old = {(item.start, item.profile): item for item in (before.slices if before else ())}
    new = {(item.start, item.profile): item for item in (after.slices if after else ())}
    return GpuChange(
        known.type,
        before.id if before else None,
        after.id if after else None,
        tuple(_slice_change(old.get(key), new.get(key)) for key in sorted({*old, *new})),
    )


def _slice_change(before: PlannedSlice | None, after: PlannedSlice | None) -> SliceChange:
    known = before or after
    assert known is not None
    tenants_before, tenants_after = (item.tenants if item else () for item in (before, after))
    shares_before: dict[object, list[float]] = {}
    for tenant in tenants_before:
        shares_before.setdefault(tenant_key(tenant), []).append(tenant.share)
    return SliceChange(
        "gone" if after is None else "new" if before is None else "kept",
        known.profile,
        known.start,
        tenants_before,
        tenants_after,
        _difference_of(tenants_before, tenants_after),
        _difference_of(tenants_after, tenants_before),
        tuple(
            tenant
            for tenant in tenants_after
            if (known_shares := shares_before.get(tenant_key(tenant)))
            and not any(equal(share, tenant.share) for share in known_shares)
        ),
    )


def _difference_of(tenants: Sequence[Tenant], others: Sequence[Tenant]) -> tuple[Tenant, ...]:
    """The tenants that are not among the others, as multisets."""
    counts = Counter(map(tenant_key, others))
    left = []
    for tenant in tenants:
        if counts[tenant_key(tenant)]:
            counts[tenant_key(tenant)] -= 1
        else:
            left.append(tenant)
    return tuple(left)


def _model_changes(before: Sequence[PlannedModel], after: Sequence[PlannedModel]) -> tuple[ModelChange, ...]:
    old = {model.name: model for model in before}
    new = {model.name: model for model in after}
    return tuple(_model_change(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new]))


def _model_change(name: str, before: PlannedModel | None, after: PlannedModel | None) -> ModelChange:
    if before is None or after is None:
        return ModelChange(name, before, after, "new" if before is None else "gone")
    rate = _difference(before.throughput_rps, after.throughput_rps)
    latency = None
    if before.latency_ms is not None and after.latency_ms is not None:
        latency = _difference(before.latency_ms, after.latency_ms)
    return ModelChange(
        name,
        before,
        after,
        "gains" if rate > 0 else "loses" if rate < 0 else "same",
        rate,
        rate / before.throughput_rps if before.throughput_rps else None,
        _difference(before.normalised, after.normalised),
        latency,
    )


def _difference(before: float, after: float) -> float:
    return 0.0 if equal(before, after) else after - before
