"""Draws a slice's tenants: a background in the model's colour, text on it, and a gauge of the load below."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchsplit_core.pictures.colours import FULL_STAGE, PLAIN_STAGE, UNKNOWN
from torchsplit_core.pictures.numbers import percent, short
from torchsplit_core.pictures.slice_values import kv_cache_gib, overloaded, place_words
from torchsplit_core.pictures.slices.descriptions import tenant_title
from torchsplit_core.pictures.slices.drawing import BODY, GAP, OVER, chosen_by, edge, hatch, line, unused
from torchsplit_core.pictures.slices.stages import StageKey, StagePosition, shade
from torchsplit_core.pictures.svg_text import (
    escaped,
    escaped_attribute,
    fitted,
    profile_name,
    shortened,
    text_width,
    wrapped,
)
from torchsplit_core.values import GpuType, PlannedSlice, StateInstance, Tenant
from torchsplit_core.values.llm.decoder import DecoderSizes

HELD = (FULL_STAGE - PLAIN_STAGE) / (1 - PLAIN_STAGE)
"""Opacity of what weights hold of an engine's slice: over the slice's own as strong as a last stage."""
GAUGE_MARGIN = 5.0
"""Pixels between the gauge and either side of the tenant."""
TAG_HEIGHT = 16 / 11
"""Height of an overload's tag, in units of its font size."""
UNKNOWN_TENANTS = StateInstance("", 0).foreign
"""What a state says of an instance where nothing says who uses it."""
WIDE = 70.0
"""Pixels of room from which on a slice shows all its text."""


@dataclass(frozen=True, slots=True)
class MapStyle:
    """Colours by model, loads by (model, stage), and positions of the stages of cut models.

    `busy` replaces the loads by the share of time that a tenant works, by (start of its slice, model, stage).
    `decoders`: sizes of LLMs by model, which tell how much of an engine's memory is its KV cache.
    """

    colours: Mapping[str, str]
    loads: Mapping[tuple[str, str], float]
    stages: Mapping[StageKey, StagePosition]
    busy: Mapping[tuple[int, str, str], float] | None = None
    decoders: Mapping[str, DecoderSizes] = field(default_factory=dict)

    def gauge(self, item: PlannedSlice, tenant: Tenant) -> float | None:
        """The share that the tenant's gauge shows; None if unknown."""
        if self.busy is not None:
            return self.busy.get((item.start, tenant.model, tenant.stage))
        return self.loads.get((tenant.model, tenant.stage))


@dataclass(frozen=True, slots=True)
class SliceStyle:
    """Sizes of a slice in pixels, and its text.

    The gauge is below the text; the tag with an overload is `tag_gap` above the gauge. `words` draws the text from the
    profile's name ("" after the first tenant), the tenant, its stage, its width, and whether it is overloaded.
    """

    height: float
    gauge_top: float
    gauge_height: float
    tag_size: float
    tag_gap: float
    words: Callable[[str, Tenant, StagePosition | None, float, bool], str]
    free: bool = True
    """Whether a free slice shows its profile."""


def slice_svg(
    kind: GpuType,
    item: PlannedSlice,
    slot: float,
    style: MapStyle,
    place: str,
    slice_style: SliceStyle | None = None,
    *,
    other: str = "",
) -> str:
    """A slice at its start (`slice_style` None: as on a card); tenants that share it are side by side, as wide as their
    shares. `other`: who uses it besides plans; then its tenants are named without figures, since these do not hold."""
    slice_style = slice_style or CARD
    left, width = item.start * slot, kind.profile(item.profile).memory_slices * slot
    if other:
        return _foreign(item, other, left + GAP / 2, width - GAP, place, slice_style)
    if not item.tenants:
        title = f"{place_words(item)}: free"
        names = (profile_name(item.profile, width), "free") if slice_style.free else ("free",)
        return unused(left + GAP / 2, width - GAP, names, title, place=place, height=slice_style.height)
    inner = width - GAP
    scale = inner / max(1.0, sum(tenant.share for tenant in item.tenants))
    parts, at = [], 0.0
    for number, tenant in enumerate(item.tenants):
        wide = tenant.share * scale
        parts.append(_tenant(kind, item, tenant, at, wide, style, slice_style, first=number == 0))
        at += wide
    rest = inner - at
    if rest > 1:
        left_over = f"{place_words(item)}: {percent(rest / inner)} of its time is free"
        parts.append(unused(at, rest, (), left_over, height=slice_style.height))
    return (
        f'<svg class="slice"{chosen_by(place)} x="{left + GAP / 2:g}" y="0" width="{inner:g}" '
        f'height="{slice_style.height:g}">'
        f"{''.join(parts)}{edge(place, inner, slice_style.height)}</svg>"
    )


def _foreign(
    item: PlannedSlice, other: str, left: float, width: float, place: str, slice_style: SliceStyle
) -> str:
    """A slice in grey that somebody uses whom no plan placed, or may use."""
    names = ", ".join([*dict.fromkeys(tenant.model for tenant in item.tenants), other])
    is_known = other != UNKNOWN_TENANTS
    shown = names if is_known or text_width(names, 12, bold=True) <= width - 11 else "?"
    stand_in = Tenant(shown, "", "", 1.0, 1, 1, math.nan, 0.0)
    title = f"{names}\n{place_words(item)}\n{'not placed by a plan' if is_known else 'nothing says what runs here'}"
    words = slice_style.words(profile_name(item.profile, width), stand_in, None, width, False)
    return (
        f'<svg class="foreign"{chosen_by(place)} x="{left:.2f}" y="0" width="{width:.2f}"'
        f' height="{slice_style.height:g}"><title>{escaped(title)}</title>{foreign_ground(width, slice_style.height)}'
        f"{words}{edge(place, width, slice_style.height)}</svg>"
    )


def foreign_ground(width: float, height: float) -> str:
    """The background of what no plan placed."""
    return (
        f'<rect x=".75" y=".75" width="{max(width - 1.5, 0.5):.2f}" height="{height - 1.5:g}" rx="4"'
        f' fill="{UNKNOWN}" fill-opacity=".4" stroke="{UNKNOWN}" stroke-width="1.5"/>'
    )


def _tenant(
    kind: GpuType,
    item: PlannedSlice,
    tenant: Tenant,
    left: float,
    width: float,
    style: MapStyle,
    slice_style: SliceStyle,
    *,
    first: bool,
) -> str:
    colour = style.colours.get(tenant.model, UNKNOWN)
    load = style.gauge(item, tenant)
    stage = style.stages.get((tenant.model, tenant.variant, tenant.stage))
    over = style.busy is None and load is not None and overloaded(load)
    kv_gib = kv_cache_gib(tenant, style.decoders.get(tenant.model))
    title = tenant_title(item, tenant, load, stage, kv_gib, simulated=style.busy is not None)
    head = profile_name(item.profile, width) if first else ""
    known = f' data-stage="{stage.number}"' if stage else ""
    return (
        f'<svg class="tenant" data-model="{escaped_attribute(tenant.model)}"{known} x="{left:.2f}" y="0"'
        f' width="{width:.2f}" height="{slice_style.height:g}"><title>{escaped(title)}</title>'
        f'<rect class="ground" x=".5" y=".5" width="{max(width - 1, 0.5):.2f}" '
        f'height="{slice_style.height - 1:g}" rx="4"'
        f' fill="{colour}" fill-opacity="{shade(stage):.3g}"/>'
        f"{_held_memory(width, colour, tenant, kv_gib, kind.profile(item.profile).memory_gib, slice_style)}"
        f'<rect x=".75" y=".75" width="{max(width - 1.5, 0.5):.2f}" '
        f'height="{slice_style.height - 1.5:g}" rx="4" fill="none"'
        f' stroke="{colour}" '
        f'stroke-width="1.2"/>{_overload(width, load, slice_style) if over and load is not None else ""}'
        f"{slice_style.words(head, tenant, stage, width, over)}"
        f"{_gauge(width, colour, load, slice_style, over=over)}</svg>"
    )


def _held_memory(
    width: float,
    colour: str,
    tenant: Tenant,
    kv_gib: float | None,
    memory_gib: float | None,
    style: SliceStyle,
) -> str:
    """The part of an engine's slice that weights and the engine itself hold, darker, up to where its KV cache begins;
    a line stands where the cache ends. "" where that is not known.
    """
    if kv_gib is None or not tenant.memory_gib or not memory_gib:
        return ""
    held = width * min(1.0, max(0.0, tenant.memory_gib - kv_gib) / memory_gib)
    end = width * min(1.0, tenant.memory_gib / memory_gib)
    return (
        f'<rect class="held" x=".5" y=".5" width="{max(held - 1, 0.5):.2f}" height="{style.height - 1:g}" rx="4"'
        f' fill="{colour}" fill-opacity="{HELD:.3g}"/>'
        f'<path class="kv-end" d="M{end:.2f} 1V{style.height - 1:g}" stroke="{colour}" stroke-opacity=".7"'
        ' stroke-dasharray="3 3"/>'
    )


def _gauge(width: float, colour: str, load: float | None, slice_style: SliceStyle, *, over: bool) -> str:
    """A thin bar as wide as the load; "" if the load is unknown, since that is not zero."""
    room = width - 2 * GAUGE_MARGIN
    if load is None or room < 2:
        return ""
    bar = (
        f'x="{GAUGE_MARGIN:g}" y="{slice_style.gauge_top:g}" height="{slice_style.gauge_height:g}" '
        f'rx="{slice_style.gauge_height / 2:g}"'
    )
    return (
        f'<rect class="headroom" {bar} width="{room:.2f}" fill="currentColor" fill-opacity=".16"/>'
        f'<rect class="load" {bar} width="{room * min(1.0, load):.2f}" fill="{OVER if over else colour}"'
        ' stroke="currentColor" stroke-opacity=".55" stroke-width=".6"/>'
    )


def _overload(width: float, load: float, slice_style: SliceStyle) -> str:
    """Overlay of a tenant whose demand cannot be met: red hatch and frame, and the load in per cent."""
    text, size = f"{short(math.ceil(100 * load))}%", slice_style.tag_size
    wide, high = text_width(text, size, bold=True) + 8, size * TAG_HEIGHT
    right, top = max(width - 4, 1), slice_style.gauge_top - high - slice_style.tag_gap
    tag = ""
    if wide <= width - 4:
        tag = (
            f'<rect x="{right - wide:.2f}" y="{top:.4g}" width="{wide:.2f}" height="{high:.4g}" rx="3"'
            f' fill="{OVER}"/><text x="{right - wide + 4:.2f}" y="{top + high - 4:.4g}" font-size="{size:g}"'
            f' font-weight="700" fill="#ffffff">{text}</text>'
        )
    return (
        f'<g class="over">{hatch(width, slice_style.height, over=True)}'
        f'<rect x="1.5" y="1.5" width="{max(width - 4, 0.5):.2f}" height="{slice_style.height - 3:g}" '
        f'rx="4" fill="none"'
        f' stroke="{OVER}" stroke-width="2.5"/>{tag}</g>'
    )


def _labels(head: str, tenant: Tenant, stage: StagePosition | None, width: float, over: bool) -> str:
    """The text that fits: everything in a wide slice; profile, wrapped name, stage and throughput in a narrow one."""
    room = width - 11
    if room < 14:
        return ""
    if room >= WIDE:
        size = 14.0 if text_width(tenant.model, 14, bold=True) <= room else 12.0
        return "".join(
            (
                line(6, 15, head, 11),
                line(6, 32, shortened(tenant.model, room, size, bold=True), size, bold=True),
                _stage_label(tenant, stage, room),
                *_figures(tenant, room),
            )
        )
    size = 10.5
    parts = [line(5, 14, head, 11)]
    for row, part in enumerate(wrapped(tenant.model, width - 7, size, 2 if stage else 3)):
        parts.append(line(5, 28 + row * 12.5, part, size, bold=True))
    if stage is not None and text_width(stage.short, 11, bold=True) <= width - 7:
        parts.append(line(5, 54, stage.short, 11, bold=True))
    figure = "" if math.isnan(tenant.throughput_rps) else short(tenant.throughput_rps)
    if text_width(figure, 11.5) <= width - 7:
        # Above 100 % the load's tag is below it.
        parts.append(line(5, 68 if over else 80, figure, 11.5))
    return "".join(parts)


def _stage_label(tenant: Tenant, stage: StagePosition | None, room: float) -> str:
    """The tenant's part of its model: "s1/4 · cut2", or the names of variant and stage."""
    if stage is None:
        text = tenant.stage if tenant.stage == tenant.variant else f"{tenant.variant} · {tenant.stage}"
        if tenant.engine is not None:
            text = f"engine on {tenant.gpus} GPUs" if tenant.gpus > 1 else "engine"
        return line(6, 47, fitted(text, room, 11.5), 11.5)
    left = room - text_width(stage.short, 12, bold=True) - 10
    rest = fitted(f" · {tenant.variant}", left, 11.5) if left > 40 else ""
    return (
        f'<text x="6" y="47" font-size="11.5"><tspan font-weight="700" font-size="12">{stage.short}</tspan>'
        f"{escaped(rest)}</text>"
    )


def _figures(tenant: Tenant, room: float) -> tuple[str, ...]:
    """Throughput and batch of a tenant; none in a manual plan that could not be evaluated."""
    if math.isnan(tenant.throughput_rps):
        return ()
    size = f"batch {tenant.batch_size}"
    if tenant.engine is not None:
        size = f"up to {tenant.engine.max_num_seqs} sequences"
    return (
        f'<text x="6" y="67" font-size="12"><tspan font-weight="700">{short(tenant.throughput_rps * tenant.gpus)}'
        "</tspan> req/s</text>",
        line(6, 82, fitted(size, room, 11.5), 11.5),
    )


CARD = SliceStyle(BODY, BODY - 10, 5.0, 11.0, 3.0, _labels)
"""The style of a slice on a card."""
