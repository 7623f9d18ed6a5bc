"""Texts of the slice map: titles of slices (on hover), and descriptions of cards for screen readers."""

from __future__ import annotations

import math

from torchsplit_core.pictures.numbers import exact, percent, short
from torchsplit_core.pictures.slice_values import EmptySlots, GpuGroup, place_words
from torchsplit_core.pictures.slices.stages import StagePosition
from torchsplit_core.planning.confidence.formatting import tenant_interval
from torchsplit_core.values import PlannedSlice, Tenant, profile_words


def tenant_title(
    item: PlannedSlice,
    tenant: Tenant,
    load: float | None,
    stage: StagePosition | None,
    kv_gib: float | None = None,
    *,
    simulated: bool = False,
) -> str:
    """All figures of a tenant; `load` is its utilisation if `simulated`, `kv_gib` its KV cache's memory on each GPU."""
    memory = "memory n/a" if not tenant.memory_gib else exact(tenant.memory_gib, "GiB")
    share = "" if tenant.share == 1 else f"\n{percent(tenant.share)} of the slice's time"
    if math.isnan(tenant.throughput_rps):
        return f"{tenant.model}\n{place_words(item)}{share}\nnot evaluated: see what is wrong"
    part = f", stage {stage.number} of {stage.count}" if stage else ""
    if tenant.engine is not None:
        return _engine_title(item, tenant, load, kv_gib, simulated=simulated)
    kind = "at work, simulated," if simulated else "load at the planned demand"
    return (
        f"{tenant.model} · {tenant.variant} · {tenant.stage}{part}\n"
        f"{place_words(item)}{share}\n"
        f"{exact(tenant.throughput_rps, 'req/s')}, {kind} {percent(load)}\n"
        f"{_describe_basis(tenant)}\n"
        f"batch {tenant.batch_size}, processes {tenant.processes}, {memory}"
    )


def _engine_title(
    item: PlannedSlice, tenant: Tenant, load: float | None, kv_gib: float | None, *, simulated: bool
) -> str:
    engine = tenant.engine
    assert engine is not None
    kind = "at work, simulated," if simulated else "load at the planned demand"
    where = f"on {tenant.gpus} GPUs together" if tenant.gpus > 1 else place_words(item)
    keys = "KV cache not known"
    if engine.kv_blocks is not None:
        keys = f"KV cache of {engine.kv_blocks * engine.block_tokens:,} tokens"
    memory = "memory n/a" if not tenant.memory_gib else f"{exact(tenant.memory_gib, 'GiB')} a GPU"
    if kv_gib is not None:
        memory += f", of which the KV cache has {short(kv_gib, 'GiB')}"
    return (
        f"{tenant.model} · engine\n{where}\n"
        f"{exact(tenant.throughput_rps * tenant.gpus, 'req/s')}, {kind} {percent(load)}\n"
        f"{_describe_basis(tenant)}\n"
        f"at most {engine.max_num_seqs} sequences, {keys}, {memory}"
    )


def _describe_basis(tenant: Tenant) -> str:
    """The 90 % interval of a tenant's throughput, and its basis."""
    low, high = tenant_interval(tenant)
    ends = "interval n/a"
    if low is not None or high is not None:
        whole = tenant.throughput_rps * tenant.gpus
        low, high = (None if end is None else end * tenant.gpus for end in (low, high))
        ends = f"90 % interval {exact(whole if low is None else low)} to {exact(whole if high is None else high)}"
    return f"{ends}, {tenant.basis or 'basis n/a'}"


def gap_words(group: GpuGroup, gap: EmptySlots) -> tuple[str, str]:
    """A label for slots without a slice, and a title with its meaning and the slots."""
    if not group.slices and group.state is None:
        label, title = "not used", f"{group.type}: the plan does not use it"
    elif not group.slices and group.state is not None and not group.state.mig_enabled:
        label, title = "free", f"{group.type}: nothing runs on it"
    elif gap.usable:
        label, title = "not cut", "No slice here; a profile would fit"
    else:
        label, title = "no use", "No profile of this GPU can use these memory slots beside the others"
    return label, f"{title} · memory slots {gap.start} to {gap.start + gap.slots - 1}"


def describe_card(group: GpuGroup) -> str:
    """The card in one sentence."""
    who = group.ids[0] if len(group.ids) == 1 else f"{len(group.ids)} GPUs alike, first {group.ids[0]}"
    mode = "" if group.state is None else mode_words(group.state.mig_enabled)
    about = f"{who}, {group.type}{f', {mode}' if mode else ''}"
    if group.engine_gpus > 1:
        about += f", {engine_words(group)}"
    if not group.slices:
        return f"{about}: {'not used' if group.state is None else 'no slice'}"
    marks = group.marks or ("",) * len(group.slices)
    slices = "; ".join(
        f"{profile_words(item.profile)} "
        + (
            ", ".join(
                [
                    *(f"{t.model} {t.stage} {short(t.throughput_rps, 'req/s')}" for t in item.tenants),
                    *filter(None, (other,)),
                ]
            )
            or "free"
        )
        + (f", {mark}" if mark else "")
        for item, other, mark in zip(group.slices, group.others, marks, strict=True)
    )
    return f"{about}: {slices}"


def engine_words(group: GpuGroup) -> str:
    """How many engines on how many GPUs each a card of such stands for."""
    engines = len(group.ids) // group.engine_gpus
    if engines > 1:
        return f"{engines} engines on {group.engine_gpus} GPUs each"
    return f"one engine on {group.engine_gpus} GPUs"


def mode_words(mig_enabled: bool | None) -> str:
    """Whether MIG is on; "" where it is not known, or the GPU has none."""
    return "" if mig_enabled is None else f"MIG {'on' if mig_enabled else 'off'}"
