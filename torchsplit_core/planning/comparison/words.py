"""The differences of two plans in plain sentences: slices, models, what to drain, GPU by GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchsplit_core.planning.comparison.changes import Drain, GpuChange, ModelChange, SliceChange
from torchsplit_core.values import Tenant, slice_name

MOST_NAMED = 3
"""GPUs named in a sentence; the rest of them are counted."""


def all_lines(
    gpus: Sequence[GpuChange], models: Sequence[ModelChange], drains: Sequence[Drain]
) -> tuple[str, ...]:
    """Summary first, then models (those that lose first), what to drain, and the GPUs that change."""
    order = {"loses": 0, "gone": 1, "gains": 2, "new": 3, "same": 4}
    told = [_model(model) for model in sorted(models, key=lambda model: order[model.direction])]
    renumbered = [
        f"{gpu.before_id} is {gpu.after_id} in the new plan"
        for gpu in gpus
        if None not in (gpu.before_id, gpu.after_id) and gpu.before_id != gpu.after_id
    ]
    lines = [_summary(gpus), *(line for line in told if line), *_drains(drains), *_gpus(gpus)]
    if renumbered:
        lines.append(f"So that the fewest slices change: {_shorten(renumbered)}.")
    return tuple(lines)


def _summary(gpus: Sequence[GpuChange]) -> str:
    slices = [item for gpu in gpus for item in gpu.slices]
    counts = Counter(item.change for item in slices)
    moved = sum(item.changed for item in slices if item.change == "kept")
    if not counts["new"] and not counts["gone"]:
        if not moved:
            return "No slice and no tenant changes."
        return f"No slice changes; {moved} {_plural(moved, 'gets', 'get')} another model or share."
    kept = f"{counts['kept']} {_plural(counts['kept'], 'slice stays', 'slices stay')}"
    if moved:
        kept += f" ({moved} {_plural(moved, 'gets', 'get')} another model or share)"
    return (
        f"{kept}, {counts['gone']} {_plural(counts['gone'], 'goes', 'go')}, {counts['new']} "
        f"{_plural(counts['new'], 'is', 'are')} new."
    )


def _model(change: ModelChange) -> str:
    if change.before is None and change.after is not None:
        return f"{change.name} is new, with {_rate(change.after.throughput_rps)}."
    if change.after is None and change.before is not None:
        return f"{change.name} is gone; it had {_rate(change.before.throughput_rps)}."
    assert change.before is not None and change.after is not None and change.throughput_rps is not None
    parts = []
    if change.direction != "same":
        amount = _rate(abs(change.throughput_rps))
        if change.relative is None:
            parts.append(f"is served now, with {amount}")
        elif change.after.throughput_rps == 0:
            parts.append(f"loses all of its {amount} and is not served any more")
        else:
            parts.append(f"{change.direction} {amount} ({100 * change.relative:+.3g} %)")
    if change.normalised:
        parts.append(
            f"goes from {change.before.normalised:.3g} to {change.after.normalised:.3g} × its demand"
        )
    if change.latency_ms:
        parts.append(
            f"its latency goes from {change.before.latency_ms:.3g} to {change.after.latency_ms:.3g} ms"
        )
    return f"{change.name} {'; '.join(parts)}." if parts else ""


def _drains(drains: Sequence[Drain]) -> list[str]:
    if not drains:
        return []
    places: dict[str, list[str]] = {}
    for item in drains:
        for tenant in item.tenants:
            places.setdefault(_tenant(tenant), []).append(
                f"{item.gpu_id} {slice_name(item.profile, item.start)}"
            )
    return [f"Drain first: {who} on {_shorten(where)}." for who, where in places.items()]


def _gpus(gpus: Sequence[GpuChange]) -> list[str]:
    """One sentence for all GPUs that change alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        if gpu.changed:
            name = gpu.before_id if gpu.before_id is not None else gpu.after_id
            assert name is not None
            what = "; ".join(_slice(item) for item in gpu.slices if item.changed)
            if gpu.after_id is None:
                what = f"leaves the fleet; {what}" if what else "leaves the fleet"
            elif gpu.before_id is None:
                what = f"joins the fleet; {what}" if what else "joins the fleet"
            alike.setdefault((gpu.type, what), []).append(name)
    return [f"{_shorten(names)} ({kind}): {what}." for (kind, what), names in alike.items()]


def _slice(item: SliceChange) -> str:
    where = slice_name(item.profile, item.start)
    if item.change == "gone":
        return f"{where} goes" + (f" with {_tenants(item.leaving)}" if item.leaving else "")
    if item.change == "new":
        return f"{where} is new" + (f", for {_tenants(item.arriving)}" if item.arriving else ", idle")
    parts = []
    if item.leaving and item.arriving:
        parts.append(f"{_tenants(item.leaving)} makes room for {_tenants(item.arriving)}")
    elif item.leaving:
        parts.append(f"{_tenants(item.leaving)} leaves")
    elif item.arriving:
        parts.append(f"{_tenants(item.arriving)} comes")
    parts += [f"{tenant.model} has {tenant.share:.3g} of it" for tenant in item.reshared]
    return f"{where} stays, {' and '.join(parts)}"


def _tenants(tenants: Sequence[Tenant]) -> str:
    return " and ".join(map(_tenant, tenants))


def _tenant(tenant: Tenant) -> str:
    stage = "" if tenant.stage == tenant.variant else f" {tenant.stage}"
    processes = "" if tenant.processes == 1 else f", {tenant.processes} processes"
    return f"{tenant.model}{stage} (batch {tenant.batch_size}{processes})"


def _rate(value: float) -> str:
    return f"{value:.3g} requests/s"


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _shorten(names: Sequence[str]) -> str:
    if len(names) <= MOST_NAMED + 1:
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
