"""The legend: the signs that the map shows, drawn as in the map but not in a model's colour."""

from __future__ import annotations

from torchsplit_core.hardware import gpu_type
from torchsplit_core.pictures.colours import FAINTEST_STAGE, FULL_STAGE, PLAIN_STAGE
from torchsplit_core.pictures.slice_values import GpuGroup, empty_slots, kv_cache_gib, overloaded
from torchsplit_core.pictures.slices.drawing import OVER, hatch
from torchsplit_core.pictures.slices.tenant import HELD, MapStyle, foreign_ground

_LOAD = "load at the planned demand; the rest is headroom"
_WIDE, _HIGH = 30, 14
"""Pixels of a swatch."""


def legend(groups: tuple[GpuGroup, ...], style: MapStyle, *, strips: bool = True) -> str:
    """The legend as one line that wraps. `strips`: the map shows memory slots and compute slices below each GPU."""
    outline = (
        f'<rect x=".6" y=".6" width="{_WIDE - 1.2}" height="{_HIGH - 1.2}" rx="3" fill="none"'
        ' stroke="currentColor" stroke-opacity=".45"'
    )
    bar = f'<rect y="4.5" height="5" rx="2.5" width="{_WIDE}" fill-opacity=".16"/>'
    filled = (
        '<rect y="4.5" height="5" rx="2.5" width="18" fill-opacity=".55" stroke="currentColor"'
        ' stroke-opacity=".55" stroke-width=".6"/>'
    )
    over = (
        f'{hatch(_WIDE, _HIGH, over=True)}<rect x="1" y="1" width="{_WIDE - 2}" height="{_HIGH - 2}" rx="3"'
        f' fill="none" stroke="{OVER}" stroke-width="2"/>'
    )
    tenants = [tenant for group in groups for item in group.slices for tenant in item.tenants]
    simulated = style.busy is not None
    known = simulated or any((tenant.model, tenant.stage) in style.loads for tenant in tenants)
    load = "share of its time at work, simulated" if simulated else _LOAD
    over_load = not simulated and any(map(overloaded, style.loads.values()))
    cut = any((tenant.model, tenant.variant, tenant.stage) in style.stages for tenant in tenants)
    engines = any(kv_cache_gib(tenant, style.decoders.get(tenant.model)) is not None for tenant in tenants)
    users = [
        (item.tenants, other)
        for group in groups
        for item, other in zip(group.slices, group.others, strict=True)
    ]
    free = any(not tenants and not other for tenants, other in users)
    empty = any(empty_slots(gpu_type(group.type), group.slices) for group in groups)
    slots = '<rect y="4.5" width="30" height="5" rx="2" fill-opacity='
    entries = [
        (known, f"{bar}{filled}", load),
        (over_load, over, "load above 100 %: the demand is not met"),
        (cut, _shades(), "stages of a cut model: first pale, last full"),
        (
            any(other for _, other in users),
            foreign_ground(_WIDE, _HIGH),
            "not placed by a plan, or not known",
        ),
        (engines, _held(), "an engine's memory: weights and its own, then KV cache up to the line"),
        (free, f"{hatch(_WIDE, _HIGH)}{outline}/>", "free slice"),
        (empty, f'{hatch(_WIDE, _HIGH)}{outline} stroke-dasharray="3 3"/>', "no slice there"),
        (strips and bool(groups), f'{slots}".28"/>', "memory slots"),
        (strips and bool(groups), f'{slots}".6"/>', "compute slices"),
    ]
    shown = "".join(
        '<span style="display:inline-flex;align-items:center;gap:.45rem">'
        f'<svg width="{_WIDE}" height="{_HIGH}" viewBox="0 0 {_WIDE} {_HIGH}" fill="currentColor"'
        f' aria-hidden="true">{sign}</svg>{name}</span>'
        for wanted, sign, name in entries
        if wanted
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:.4rem 1.3rem;margin-top:1.3rem;font-size:.82rem">'
        f"{shown}</div>"
    )


def _held() -> str:
    return (
        f'<rect width="{_WIDE}" height="{_HIGH}" rx="3" fill-opacity="{PLAIN_STAGE:g}"/>'
        f'<rect width="{0.4 * _WIDE:g}" height="{_HIGH}" rx="3" fill-opacity="{HELD:.3g}"/>'
        f'<path d="M{0.9 * _WIDE:g} 0V{_HIGH}" stroke="currentColor" stroke-opacity=".7" stroke-dasharray="3 3"/>'
    )


def _shades() -> str:
    steps = 4
    return "".join(
        f'<rect x="{step * _WIDE / steps:g}" width="{_WIDE / steps:g}" height="{_HIGH}"'
        f' fill-opacity="{FAINTEST_STAGE + (FULL_STAGE - FAINTEST_STAGE) * step / (steps - 1):.3g}"/>'
        for step in range(steps)
    )
