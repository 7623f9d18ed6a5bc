"""Plans of cores made by hand: what each tenant is, without a planner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    FleetEntry,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
    Stage,
    Tenant,
    Variant,
)
from torchsplit_core.values.plan.outcome import ObjectiveValue, PlanStatistics


@dataclass(frozen=True, slots=True)
class Placed:
    """A tenant: its slice's profile and start, its stage, batch size and share."""

    model: str
    profile: str = "1c"
    start: int = 0
    stage: str = "whole"
    batch_size: int = 4
    processes: int = 1
    share: float = 1.0
    ms: float = 5.0


def cpu_plan(
    placed: Sequence[Placed],
    sources: Mapping[str, str | None],
    *,
    cores: int = 2,
    max_wait_ms: Mapping[str, float] = {},
    nodes: Mapping[str, Mapping[str, tuple[str, ...]]] = {},
    demand_rps: float = 20.0,
    type_: str | None = None,
    limits: Mapping[str, float] = {},
) -> tuple[PlanOutcome, PlanRequest]:
    """A plan of one host of so many cores (or one GPU of `type_`) and the request it answers.

    A batch takes `ms` whatever its size. `nodes` by model and stage, in the order of the stages.
    """
    kind = type_ or f"CPU-{cores}c"
    models = []
    for name, source in sources.items():
        own = [one for one in placed if one.model == name]
        names = tuple(nodes.get(name, {})) or tuple(dict.fromkeys(one.stage for one in own))
        stages = tuple(
            Stage(
                stage,
                tuple(
                    Point(
                        "CPU" if type_ is None else type_, one.profile, size,
                        1000.0 * size * one.processes / one.ms, one.ms, one.processes, 0.1,
                    )
                    for one in {(o.profile, o.processes): o for o in own if o.stage == stage}.values()
                    for size in sorted({1, one.batch_size})
                ),
                nodes.get(name, {}).get(stage, ()),
            )
            for stage in names
        )  # fmt: skip
        variant = Variant("cut" if len(names) > 1 else "whole", stages, (0.0,) * (len(names) - 1))
        models.append(
            PlanModel(name, (variant,), demand_rps=demand_rps, source=source, max_latency_ms=limits.get(name))
        )
    request = PlanRequest((FleetEntry(kind, id="host0"),), tuple(models))
    slices: dict[tuple[str, int], list[Tenant]] = {}
    for one in placed:
        variant = next(model.variants[0] for model in models if model.name == one.model)
        rate = 1000.0 * one.batch_size * one.processes / one.ms * one.share
        tenant = Tenant(
            one.model, variant.name, one.stage, one.share, one.batch_size, one.processes, rate, 0.1,
            "measured",
        )  # fmt: skip
        slices.setdefault((one.profile, one.start), []).append(tenant)
    gpu = PlannedGpu(
        "host0", kind, True, tuple(PlannedSlice(p, s, tuple(found)) for (p, s), found in slices.items())
    )
    planned = tuple(
        PlannedModel(
            model.name, model.variants[0].name,
            sum(1000.0 * o.batch_size * o.processes / o.ms * o.share for o in placed if o.model == model.name)
            / len(model.variants[0].stages),
            1.0, 5.0, max_wait_ms=max_wait_ms.get(model.name),
        )
        for model in models
        if any(o.model == model.name for o in placed)
    )  # fmt: skip
    objective = ObjectiveValue("leximin", 1.0, (1.0,), 1.0, 0.0, 1)
    statistics = PlanStatistics(0.0, 0.0, 0.0, "by hand")
    return PlanOutcome(request_hash(request), "optimal", objective, (gpu,), planned, statistics), request
