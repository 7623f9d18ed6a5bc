"""Power of a plan, estimated: a card draws a part of its limit while idle, and the rest in proportion to its use.

With the limit L of a card (the TDP of `hardware/data/gpu_peaks.csv`, which names its source), the share s of it that
an idle card draws, and the utilisation u, its power is L · (s + (1 − s) · u): linear from idle to the limit, as in
Fan, Weber, Barroso, "Power provisioning for a warehouse-sized computer" (ISCA 2007). No s of these cards is sourced, so
it is the range from 0 to 1: from L · u, in proportion to the limit, to L, the limit all the time, which no card exceeds
for long. A busy card may draw less than its limit: A100s that served LLMs without a pause drew 17 to 79 % of it on
average (splitwise-sim, MIT licence), so what is really drawn may be below the low end, too. What hosts, fans and links
draw is left out, and so are cards that are not in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from torchsplit_core.hardware import gpu_type, peak_names, peaks
from torchsplit_core.values import WHOLE_GPU, PlannedGpu, PlanOutcome, tenants_on

RULE = (
    "from limit × utilisation up to the limits of the cards in use; what an idle card draws is not sourced, and a busy "
    "one may draw less than its limit"
)


@dataclass(frozen=True, slots=True)
class PowerRange:
    """Watts of all GPUs in use: the low end as if an idle one drew nothing, the high end the limits."""

    low_w: float
    high_w: float


def power_of(plan: PlanOutcome, rates: Mapping[str, float]) -> PowerRange | None:
    """The power of a plan while its models are asked for these requests/s; None where a type's limit is not known.

    A model without a rate is idle.
    """
    if not plan.gpus or types_without_limit(plan):
        return None
    limits = {gpu.id: power_limit_w(gpu.type) or 0.0 for gpu in plan.gpus if gpu.used}
    used = utilisations(plan, rates)
    return PowerRange(fsum(limit * used[name] for name, limit in limits.items()), fsum(limits.values()))


def power_limit_w(kind: str) -> float | None:
    """The limit of a whole card, W; None for a host's cores, and where none is sourced."""
    return peaks(kind).tdp_w if kind in peak_names() else None


def types_without_limit(plan: PlanOutcome) -> tuple[str, ...]:
    """The types in use of which no limit is known."""
    types = (gpu.type for gpu in plan.gpus if gpu.used)
    return tuple(dict.fromkeys(kind for kind in types if power_limit_w(kind) is None))


def utilisations(plan: PlanOutcome, rates: Mapping[str, float]) -> dict[str, float]:
    """By GPU the part of its compute slices that is busy: of each tenant its share of the slice's time, as far as the
    demand reaches. The requests of a model go to its variants in proportion to what they carry."""
    loads = _loads(plan, rates)
    busy: dict[str, list[float]] = {gpu.id: [] for gpu in plan.gpus}
    for gpu, item, tenant in tenants_on(plan.gpus):
        load = loads.get((tenant.model, tenant.variant, tenant.stage), 0.0)
        busy[gpu.id].append(_part_of_gpu(gpu, item.profile) * tenant.share * load)
    return {name: min(1.0, fsum(parts)) for name, parts in busy.items()}


def _part_of_gpu(gpu: PlannedGpu, profile: str) -> float:
    """The slice's compute slices of the GPU's."""
    kind = gpu_type(gpu.type)
    return 1.0 if profile == WHOLE_GPU else kind.profile(profile).compute_slices / kind.compute_slices


def _loads(plan: PlanOutcome, rates: Mapping[str, float]) -> dict[tuple[str, str, str], float]:
    """By model, variant and stage the busy part of the time of its instances."""
    carried: dict[tuple[str, str], dict[str, float]] = {}
    for *_, tenant in tenants_on(plan.gpus):
        stages = carried.setdefault((tenant.model, tenant.variant), {})
        stages[tenant.stage] = stages.get(tenant.stage, 0.0) + tenant.throughput_rps
    most = {key: min(stages.values()) for key, stages in carried.items()}
    in_all: dict[str, float] = {}
    for (model, _), rate in most.items():
        in_all[model] = in_all.get(model, 0.0) + rate
    throughputs = {model.name: model.throughput_rps for model in plan.models}
    loads = {}
    for (model, variant), stages in carried.items():
        served = min(rates.get(model, 0.0), throughputs.get(model, 0.0))
        part = served * most[model, variant] / in_all[model] if in_all[model] > 0 else 0.0
        for stage, rate in stages.items():
            loads[model, variant, stage] = min(1.0, part / rate) if rate > 0 else 0.0
    return loads
