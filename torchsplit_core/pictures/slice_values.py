"""Values that the slice map and its table show: groups of equal GPUs, loads, empty slots."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from torchsplit_core.hardware import gpu_type, plain_profiles, profile_cores
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.llm.memory import kv_bytes
from torchsplit_core.planning.confidence.formatting import tenant_interval
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import (
    WHOLE_GPU,
    GpuType,
    HostState,
    PlacedProfile,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Tenant,
    profile_words,
    tenants_on,
)
from torchsplit_core.values.llm.decoder import DecoderSizes
from torchsplit_core.values.units import GIB

Row = dict[str, str | int | float | None]
Marks = Mapping[tuple[str, int], str]
"""A word to show on a slice, by the GPU's id and the slice's start."""

TENANT_COLUMNS = (
    "variant", "stage", "batch", "processes", "share", "req/s", "low req/s", "high req/s", "basis", "load %", "GiB",
)  # fmt: skip
"""Columns of the table that are empty for a free slice."""
SHARE_DIGITS = 9
"""Decimals of a share in the table."""


@dataclass(frozen=True, slots=True)
class StateWords:
    """What a host's state says beside slices and tenants of plans. `others`: who else uses each slice, "" nobody."""

    mig_enabled: bool | None
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs of one type with equal slices and tenants, drawn as one card. `marks`: a word for each slice, or empty.

    `state` None: of a plan. `mig`: whether a plan that decides it cuts them, else None.
    """

    ids: tuple[str, ...]
    type: str
    slices: tuple[PlannedSlice, ...]
    marks: tuple[str, ...] = ()
    state: StateWords | None = None
    mig: bool | None = None

    @property
    def engine_gpus(self) -> int:
        """GPUs that one engine takes together; 1 for GPUs that are used apart."""
        return max((tenant.gpus for item in self.slices for tenant in item.tenants), default=1)

    @property
    def others(self) -> tuple[str, ...]:
        """Who uses each slice besides plans, "" for nobody."""
        return ("",) * len(self.slices) if self.state is None else self.state.others


@dataclass(frozen=True, slots=True)
class EmptySlots:
    """Consecutive memory slots without a slice. `usable`: a profile could still be placed over them."""

    start: int
    slots: int
    usable: bool


def gpu_groups(plan: PlanOutcome, marks: Marks | None = None) -> tuple[GpuGroup, ...]:
    """Group GPUs with equal slices, tenants and marks, in the order of the plan, unused ones last."""
    alike: dict[object, list[tuple[GpuGroup, list[str]]]] = {}
    order: dict[str, int] = {}
    for gpu in sorted(plan.gpus, key=lambda gpu: not gpu.slices):
        order[gpu.id] = len(order)
        slices = _by_start(gpu)
        marked = tuple(marks.get((gpu.id, item.start), "") for item in slices) if marks else ()
        known = alike.setdefault((gpu.type, tuple(map(_without_figures, slices)), marked, gpu.mig), [])
        for first, ids in known:
            if all(map(equal, _figures(slices), _figures(first.slices))):
                ids.append(gpu.id)
                break
        else:
            known.append((GpuGroup((gpu.id,), gpu.type, slices, marked, mig=gpu.mig), [gpu.id]))
    groups = [replace(first, ids=tuple(ids)) for known in alike.values() for first, ids in known]
    return tuple(sorted(groups, key=lambda group: order[group.ids[0]]))


def state_groups(state: HostState, marks: Marks | None = None) -> tuple[GpuGroup, ...]:
    """Group GPUs of hosts with equal instances, tenants, MIG modes and marks, in the order of the state."""
    alike: dict[tuple[str, tuple[PlannedSlice, ...], tuple[str, ...], StateWords], list[str]] = {}
    for gpu in state.gpus:
        instances = sorted(gpu.instances, key=lambda item: item.start)
        slices = tuple(PlannedSlice(item.profile, item.start, item.planned_tenants) for item in instances)
        words = StateWords(gpu.mig_enabled, tuple(item.foreign or "" for item in instances))
        marked = tuple(marks.get((gpu.id, item.start), "") for item in slices) if marks else ()
        alike.setdefault((gpu.type, slices, marked, words), []).append(gpu.id)
    return tuple(
        GpuGroup(tuple(ids), kind, slices, marked, words)
        for (kind, slices, marked, words), ids in alike.items()
    )


def _without_figures(item: PlannedSlice) -> PlannedSlice:
    """The slice without shares and throughputs, which come from the solver and are equal only up to rounding, and
    without the names of groups of GPUs.
    """

    def plain(tenant: Tenant) -> Tenant:
        engine = None if tenant.engine is None else replace(tenant.engine, group=None)
        return replace(tenant, share=0.0, throughput_rps=0.0, engine=engine)

    return replace(item, tenants=tuple(map(plain, item.tenants)))


def _figures(slices: Sequence[PlannedSlice]) -> list[float]:
    return [
        figure
        for item in slices
        for tenant in item.tenants
        for figure in (tenant.share, tenant.throughput_rps)
    ]


def ranges(ids: Sequence[str]) -> str:
    """Join names, with ranges of consecutive numbers: "gpu0 to gpu11, gpu14"."""
    runs: list[list[str]] = []
    last: tuple[str, int, int] | None = None
    for name in ids:
        digits = re.search(r"\d{1,9}$", name, re.ASCII)
        # The padding must be the same: gpu10 continues gpu9 and gpu09, gpu010 does not continue gpu9.
        now = (name[: digits.start()], int(digits[0]), len(digits[0])) if digits else None
        if last and now and now[:2] == (last[0], last[1] + 1) and name == _next_name(*last):
            runs[-1][1:] = [name]
        else:
            runs.append([name])
        last = now
    return ", ".join(" to ".join(run) for run in runs)


def _next_name(prefix: str, number: int, width: int) -> str:
    return f"{prefix}{number + 1:0{width}d}"


def stage_loads(plan: PlanOutcome, request: PlanRequest | None = None) -> dict[tuple[str, str], float]:
    """Demand over planned throughput by (model, stage); above 1 the demand cannot be met.

    Without a request the demand is taken as throughput / normalised = weight · demand, which is exact for weight 1. A
    stage without a known demand or without throughput is left out: its load is unknown, not zero.
    """
    wanted = {model.name: model.demand_rps for model in request.models} if request else {}
    for model in plan.models:
        if model.name not in wanted and model.normalised > 0:
            wanted[model.name] = model.throughput_rps / model.normalised
    given: dict[tuple[str, str], float] = {}
    for *_, tenant in tenants_on(plan.gpus):
        key = (tenant.model, tenant.stage)
        given[key] = given.get(key, 0.0) + tenant.throughput_rps
    return {key: wanted[key[0]] / total for key, total in given.items() if key[0] in wanted and total > 0}


def decoders(request: PlanRequest | None) -> dict[str, DecoderSizes]:
    """The sizes of the LLMs that the request knows them of, by model."""
    llms = {model.name: model.llm for model in request.models if model.llm} if request else {}
    return {name: llm.config for name, llm in llms.items() if llm.config is not None}


def kv_cache_gib(tenant: Tenant, sizes: DecoderSizes | None) -> float | None:
    """GiB of an engine's KV cache on each of its GPUs; None where blocks or sizes are not known."""
    engine = tenant.engine
    if engine is None or engine.kv_blocks is None or sizes is None:
        return None
    return engine.kv_blocks * engine.block_tokens * kv_bytes(sizes, engine.tensor_parallel) / GIB


def overloaded(load: float) -> bool:
    """Whether a load is above 100 %, up to rounding."""
    return load > 1 and not equal(load, 1.0)


def empty_slots(kind: GpuType, slices: tuple[PlannedSlice, ...]) -> tuple[EmptySlots, ...]:
    """Memory slots that no slice covers, grouped by whether a profile still fits there."""
    return _empty_slots(kind, tuple(PlacedProfile(item.profile, item.start) for item in slices))


@cache
def _empty_slots(kind: GpuType, placed: tuple[PlacedProfile, ...]) -> tuple[EmptySlots, ...]:
    covered = {slot for item in placed for slot in _slots(kind, item)}
    usable: set[int] = set()
    for profile in plain_profiles(kind):
        for start in profile.placement_starts:
            more = PlacedProfile(profile.name, start)
            if layout_fault(kind, (*placed, more)) is None:
                usable.update(_slots(kind, more))
    runs: list[EmptySlots] = []
    for slot in range(kind.memory_slices):
        if slot in covered:
            continue
        last = runs[-1] if runs else None
        if last and last.start + last.slots == slot and last.usable == (slot in usable):
            runs[-1] = EmptySlots(last.start, last.slots + 1, last.usable)
        else:
            runs.append(EmptySlots(slot, 1, slot in usable))
    return tuple(runs)


def planned_sms(group: GpuGroup) -> int | None:
    """Multiprocessors of the slices with a tenant; None if the catalogue has no figure for one of them."""
    kind = gpu_type(group.type)
    counts = [kind.profile(item.profile).sm_count for item in group.slices if item.tenants]
    return None if None in counts else sum(count or 0 for count in counts)


def reachable_sms(kind: GpuType, slices: Sequence[PlannedSlice]) -> int | None:
    """Multiprocessors available to the slices: all of an unpartitioned GPU, else those available with MIG on."""
    whole = kind.divided == "never" or any(item.profile == WHOLE_GPU for item in slices)
    return kind.sm_mig_off if whole else kind.sm_mig_on


def place_words(item: PlannedSlice) -> str:
    """The slice's profile and start."""
    if item.profile == WHOLE_GPU:
        return profile_words(item.profile)
    return f"{item.profile} at {'slot' if profile_cores(item.profile) is None else 'core'} {item.start}"


def slice_table(plan: PlanOutcome, request: PlanRequest | None = None) -> list[Row]:
    """One row for each tenant and each free slice of every GPU, with exact figures.

    None means not applicable or unknown.
    """
    loads = stage_loads(plan, request)
    return [
        _row(gpu, item, tenant, loads)
        for gpu in plan.gpus
        for item in _by_start(gpu)
        for tenant in (item.tenants or (None,))
    ]


def _row(
    gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant | None, loads: Mapping[tuple[str, str], float]
) -> Row:
    row: Row = {"GPU": gpu.id, "type": gpu.type, "slice": profile_words(item.profile), "start": item.start}
    if tenant is None:
        return {**row, "model": "free", **dict.fromkeys(TENANT_COLUMNS)}
    load = loads.get((tenant.model, tenant.stage))
    low, high = tenant_interval(tenant)
    return {
        **row,
        "model": tenant.model,
        "variant": tenant.variant,
        "stage": tenant.stage,
        "batch": tenant.batch_size,
        "processes": tenant.processes,
        "share": round(tenant.share, SHARE_DIGITS),
        "req/s": tenant.throughput_rps,
        "low req/s": low,
        "high req/s": high,
        "basis": tenant.basis,
        "load %": None if load is None else round(100 * load, 2),
        "GiB": tenant.memory_gib or None,
    }


def _by_start(gpu: PlannedGpu) -> tuple[PlannedSlice, ...]:
    return tuple(sorted(gpu.slices, key=lambda item: item.start))


def _slots(kind: GpuType, item: PlacedProfile) -> range:
    return range(item.start, item.start + kind.profile(item.profile).memory_slices)
