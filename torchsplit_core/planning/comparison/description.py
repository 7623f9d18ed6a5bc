"""The differences of two plans in plain sentences: slices, models, what to drain, GPU by GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchsplit_core.planning.comparison.changes import Drain, GpuChange, ModelChange, SliceChange
from torchsplit_core.values import Tenant, slice_name

MAX_NAMED = 3
"""GPUs named in a sentence; the others are counted."""

FACTOR_FROM = 9.0
"""Relative change from which on a factor is said: tenfold."""


def describe_changes(
    gpus: Sequence[GpuChange], models: Sequence[ModelChange], drains: Sequence[Drain]
) -> tuple[str, ...]:
    """Summary first, then models (those that lose first), what to drain, and the GPUs that change."""
    order = {"loses": 0, "gone": 1, "gains": 2, "new": 3, "same": 4}
    model_lines = [
        _describe_model(model) for model in sorted(models, key=lambda model: order[model.direction])
    ]
    renumbered = [
        f"{gpu.before_id} is {gpu.after_id} in the new plan"
        for gpu in gpus
        if None not in (gpu.before_id, gpu.after_id) and gpu.before_id != gpu.after_id
    ]
    lines = [
        _describe_summary(gpus),
        *(line for line in model_lines if line),
        *_describe_drains(drains),
        *_describe_gpus(gpus),
    ]
    if renumbered:
        lines.append(f"So that the fewest slices change: {_format_names(renumbered)}.")
    return tuple(lines)


def _describe_summary(gpus: Sequence[GpuChange]) -> str:
    slices = [item for gpu in gpus for item in gpu.slices]
    counts = Counter(item.change for item in slices)
    moved = sum(item.changed for item in slices if item.change == "kept")
    if not counts["new"] and not counts["gone"]:
        if not moved:
            return "No slice and no tenant changes."
        return f"No slice changes; {moved} {_plural(moved, 'gets', 'get')} another model or share."
    text = f"{counts['kept']} {_plural(counts['kept'], 'slice stays', 'slices stay')}"
    if moved:
        text += f" ({moved} {_plural(moved, 'gets', 'get')} another model or share)"
    return (
        f"{text}, {counts['gone']} {_plural(counts['gone'], 'goes', 'go')}, {counts['new']} "
        f"{_plural(counts['new'], 'is', 'are')} new."
    )


def format_relative(change: float) -> str:
    """A relative change: 0.123 is "+12.3 %", and from tenfold on it is the factor: 14.8 is "× 16"."""
    return f"× {1 + change:.0f}" if change >= FACTOR_FROM else f"{100 * change:+.3g} %"


def _describe_model(change: ModelChange) -> str:
    if change.before is None and change.after is not None:
        return f"{change.name} is new, with {_format_rate(change.after.throughput_rps)}."
    if change.after is None and change.before is not None:
        return f"{change.name} is gone; it had {_format_rate(change.before.throughput_rps)}."
    assert change.before is not None and change.after is not None and change.throughput_rps is not None
    parts = []
    if change.direction != "same":
        amount = _format_rate(abs(change.throughput_rps))
        if change.relative is None:
            parts.append(f"is served now, with {amount}")
        elif change.after.throughput_rps == 0:
            parts.append(f"loses all of its {amount} and is not served any more")
        else:
            parts.append(f"{change.direction} {amount} ({format_relative(change.relative)})")
    if change.normalised:
        parts.append(
            f"goes from {change.before.normalised:.3g} to {change.after.normalised:.3g} × its demand"
        )
    if change.latency_ms:
        parts.append(
            f"its latency goes from {change.before.latency_ms:.3g} to {change.after.latency_ms:.3g} ms"
        )
    return f"{change.name} {'; '.join(parts)}." if parts else ""


def _describe_drains(drains: Sequence[Drain]) -> list[str]:
    if not drains:
        return []
    slices_by_tenant: dict[str, list[str]] = {}
    for item in drains:
        for tenant in item.tenants:
            slices_by_tenant.setdefault(_format_tenant(tenant), []).append(
                f"{item.gpu_id} {slice_name(item.profile, item.start)}"
            )
    return [
        f"Drain first: {tenant_name} on {_format_names(slices)}."
        for tenant_name, slices in slices_by_tenant.items()
    ]


def _describe_gpus(gpus: Sequence[GpuChange]) -> list[str]:
    """One sentence for all GPUs that change alike."""
    alike: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        if gpu.changed:
            name = gpu.before_id if gpu.before_id is not None else gpu.after_id
            assert name is not None
            description = "; ".join(_describe_slice(item) for item in gpu.slices if item.changed)
            if gpu.after_id is None:
                description = f"leaves the fleet; {description}" if description else "leaves the fleet"
            elif gpu.before_id is None:
                description = f"joins the fleet; {description}" if description else "joins the fleet"
            alike.setdefault((gpu.type, description), []).append(name)
    return [
        f"{_format_names(names)} ({kind}): {description}." for (kind, description), names in alike.items()
    ]


def _describe_slice(item: SliceChange) -> str:
    where = slice_name(item.profile, item.start)
    if item.change == "gone":
        return f"{where} goes" + (f" with {_format_tenants(item.leaving)}" if item.leaving else "")
    if item.change == "new":
        return f"{where} is new" + (f", for {_format_tenants(item.arriving)}" if item.arriving else ", idle")
    parts = []
    if item.leaving and item.arriving:
        parts.append(f"{_format_tenants(item.leaving)} makes room for {_format_tenants(item.arriving)}")
    elif item.leaving:
        parts.append(f"{_format_tenants(item.leaving)} leaves")
    elif item.arriving:
        parts.append(f"{_format_tenants(item.arriving)} comes")
    parts += [f"{tenant.model} has {tenant.share:.3g} of it" for tenant in item.reshared]
    return f"{where} stays, {' and '.join(parts)}"


def _format_tenants(tenants: Sequence[Tenant]) -> str:
    return " and ".join(map(_format_tenant, tenants))


def _format_tenant(tenant: Tenant) -> str:
    stage = "" if tenant.stage == tenant.variant else f" {tenant.stage}"
    processes = "" if tenant.processes == 1 else f", {tenant.processes} processes"
    return f"{tenant.model}{stage} (batch {tenant.batch_size}{processes})"


def _format_rate(value: float) -> str:
    return f"{value:.3g} requests/s"


def _plural(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural


def _format_names(names: Sequence[str]) -> str:
    if len(names) <= MAX_NAMED + 1:
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"
