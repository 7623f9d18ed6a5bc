"""A plan as a picture: one card a GPU, drawn as SVG that needs no script and no style sheet.

Each card is to scale: a slice stands at its true memory slots, the model's colour fills it as
high as its load, and under it are the memory slots over the compute slices. Text takes the
page's colour (currentColor) and fills are translucent, so a card suits light and dark alike.
Every string of a user is escaped; exact figures are in titles (on hover) and in the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from app.charts.colours import HEADROOM_OPACITY, LOAD_OPACITY, UNKNOWN
from app.charts.slice_values import (
    GpuGroup,
    Marks,
    gaps,
    gpu_groups,
    overloaded,
    place_words,
    planned_sms,
    ranges,
    reachable_sms,
    slice_table,
    stage_loads,
)
from app.charts.svg_text import escaped, escaped_attribute, fitted, profile_name, text_width, wrapped
from app.format.numbers import exact, percent, short
from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.sureness.words import tenant_interval
from torchsplit_core.values import GpuType, PlannedSlice, PlanOutcome, Tenant, profile_words

__all__ = ["card_svg", "fleet_svg", "slice_table"]

WIDTH, BODY, GAP = 400.0, 100.0, 2.0
"""Pixels of a card: its width, the height of its slices, the space between two of them."""
_STRIP, _STRIP_GAP = 5.0, 3.0
TAG = "#1b1f24"
"""Behind white words on a slice, in either theme."""
OVER = "#b42318"
"""Frame, hatch and ground of what is loaded above 100 %, in either theme."""
MARK_SIGNS = {"new": "+", "goes": "−", "drain": "~", "changes": "~", "other model": "~"}
"""What stands for a mark where its word has no room; the title has the word."""
Loads = Mapping[tuple[str, str], float]


def fleet_svg(
    plan: PlanOutcome,
    colours: Mapping[str, str],
    demands: Mapping[str, float] | None = None,
    marks: Marks | None = None,
    *,
    places: bool = False,
) -> str:
    """HTML of the whole fleet: cards of equal GPUs side by side, and a legend. A card of several opens to say which.

    `marks` frames slices and says a word in each ("new", "goes"). With `places` every slice and gap can be
    chosen: `data-place` has its first memory slot and the id of its (first) GPU, see `components.picture`.
    `colours` by model as from `model_colours`; `demands` in requests/s by model, see
    `slice_values.stage_loads` for what stands in where they are not given.

    Show it with `components.picture`: `st.html` drops every SVG element. Whoever shows it relies
    on the escaping here. It is one line, since a blank one would end the HTML for Markdown.
    """
    groups = gpu_groups(plan, marks)
    loads = stage_loads(plan, demands)
    cards = "".join(
        f"<div>{card_svg(group, colours, loads, places=places)}{_members(group)}</div>" for group in groups
    )
    return (
        '<div style="display:grid;gap:1.6rem 1.8rem;'
        f'grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr))">{cards}</div>{_legend(groups, loads)}'
    )


def card_svg(group: GpuGroup, colours: Mapping[str, str], loads: Loads, *, places: bool = False) -> str:
    """One GPU (or equal ones) as an SVG element with its own heading."""
    kind = gpu_type(group.type)
    slot = WIDTH / kind.memory_slices

    def place(start: int) -> str:
        return f"{start} {group.ids[0]}" if places else ""

    parts = [
        (item.start, _slice(kind, item, slot, colours, loads, place(item.start))) for item in group.slices
    ]
    for gap in gaps(kind, group.slices):
        if not group.slices:
            label, title = "not used", f"{group.type}: the plan does not use it"
        elif gap.usable:
            label, title = "not cut", "No slice here; a profile would fit"
        else:
            label, title = "no use", "No profile of this GPU can use these memory slots beside the others"
        where = f"{title} · memory slots {gap.start} to {gap.start + gap.slots - 1}"
        left, width = gap.start * slot + GAP / 2, gap.slots * slot - GAP
        choosable = place(gap.start) if gap.usable or not group.slices else ""
        parts.append((gap.start, _hatched(left, width, (label,), where, faint=True, place=choosable)))
    # From left to right, as they are heard and reached by the keyboard; marks lie over them.
    drawn = [part for _, part in sorted(parts, key=lambda part: part[0])]
    drawn += [
        _mark(kind, item, slot, word) for item, word in zip(group.slices, group.marks, strict=False) if word
    ]
    body = f'<svg x="0" y="44" width="{WIDTH:g}" height="{BODY:g}">{"".join(drawn)}</svg>'
    below = 44 + BODY + 6
    height = below + 2 * _STRIP + _STRIP_GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="100%"'
        # What can be chosen inside must be heard on its own: a picture hides its parts.
        f' role="{"group" if places else "img"}" aria-label="{escaped_attribute(_spoken(group))}" fill="currentColor"'
        ' font-family="Source Sans, Source Sans Pro, system-ui, sans-serif">'
        f"{_heading(group, kind)}{body}{_strips(kind, group, below)}</svg>"
    )


def _members(group: GpuGroup) -> str:
    """Of equal GPUs, which they are, behind a line that opens; one card is open at a time."""
    if len(group.ids) == 1:
        return ""
    slices = "".join(
        f"<li>{escaped(place_words(item))}: "
        + (
            ", ".join(f"{escaped(one.model)} {short(one.throughput_rps, 'req/s')}" for one in item.tenants)
            or "free"
        )
        + "</li>"
        for item in group.slices
    )
    each = f"<ul>{slices}</ul>" if slices else ""
    return (
        f'<details class="alike" name="alike" data-group="{escaped_attribute(group.ids[0])}">'
        f"<summary>{len(group.ids)} GPUs alike</summary><p>{escaped(ranges(group.ids))}</p>{each}</details>"
    )


def _heading(group: GpuGroup, kind: GpuType) -> str:
    count = len(group.ids)
    times = f" × {count}" if count > 1 else ""
    name = fitted(group.ids[0], WIDTH - 60, 15, bold=True)
    listed = ", ".join(group.ids[:40]) + (f" and {count - 40} more" if count > 40 else "")
    planned, total = planned_sms(group), reachable_sms(kind, group.slices)
    share = "SMs not sourced" if planned is None or total is None else f"{planned} of {total} SMs planned"
    if kind.divided == "cores":
        busy = sum(kind.profile(item.profile).compute_slices for item in group.slices if item.tenants)
        share = f"{busy} of {kind.compute_slices} cores planned"
    each = " each" if count > 1 else ""
    return (
        f'<g><title>{escaped(listed)}</title><text x="0" y="15" font-size="15" font-weight="700">{escaped(name)}'
        f"{times}</text></g>"
        f'<text x="0" y="33" font-size="12.5" opacity=".8">{escaped(group.type)} · {share}{each}</text>'
    )


def _slice(
    kind: GpuType, item: PlannedSlice, slot: float, colours: Mapping[str, str], loads: Loads, place: str
) -> str:
    """A slice at its start; tenants that share it stand side by side, as wide as their shares."""
    left, width = item.start * slot, kind.profile(item.profile).memory_slices * slot
    if not item.tenants:
        title = f"{place_words(item)}: free"
        return _hatched(
            left + GAP / 2, width - GAP, (profile_name(item.profile, width), "free"), title, place=place
        )
    inner = width - GAP
    used = sum(tenant.share for tenant in item.tenants)
    scale = inner / max(1.0, used)
    parts, at = [], 0.0
    for number, tenant in enumerate(item.tenants):
        wide = tenant.share * scale
        colour = colours.get(tenant.model, UNKNOWN)
        load = loads.get((tenant.model, tenant.stage))
        head = profile_name(item.profile, wide) if number == 0 else ""
        title = _title(item, tenant, load)
        parts.append(
            _tenant(
                tenant.model,
                at,
                wide,
                colour,
                load,
                title,
                _lines(head, tenant, wide, over=load is not None and overloaded(load)),
            )
        )
        at += wide
    rest = inner - at
    if rest > 1:
        left_over = f"{place_words(item)}: {percent(rest / inner)} of its time is free"
        parts.append(_hatched(at, rest, (), left_over))
    inside = "".join(parts)
    return (
        f'<svg class="slice"{_chosen_by(place)} x="{left + GAP / 2:g}" y="0" width="{inner:g}" height="{BODY:g}">'
        f"{inside}{_edge(place, inner)}</svg>"
    )


def _chosen_by(place: str) -> str:
    return f' data-place="{escaped_attribute(place)}"' if place else ""


def _edge(place: str, width: float) -> str:
    """A frame that shows only while its place is chosen or has the focus."""
    if not place:
        return ""
    return (
        f'<rect class="edge" x="2" y="2" width="{max(width - 4, 1):.2f}" height="{BODY - 4:g}" rx="3"'
        ' fill="none" stroke="currentColor" stroke-width="4"/>'
    )


def _mark(kind: GpuType, item: PlannedSlice, slot: float, word: str) -> str:
    """A frame around a slice and a tag at its upper right: the word, or its sign where the slice is narrow."""
    left, width = item.start * slot + GAP / 2, kind.profile(item.profile).memory_slices * slot - GAP
    room = width - text_width(profile_name(item.profile, width), 11) - 18
    shown = word if text_width(word, 11, bold=True) <= room else MARK_SIGNS.get(word, "~")
    wide = text_width(shown, 11, bold=True) + 8
    return (
        f'<svg class="mark" x="{left:.2f}" y="0" width="{width:.2f}" height="{BODY:g}"><title>{escaped(word)}</title>'
        f'<rect x="1.5" y="1.5" width="{max(width - 3, 1):.2f}" height="{BODY - 3:g}" rx="4" fill="none"'
        ' stroke="currentColor" stroke-width="3" stroke-dasharray="7 3"/>'
        f'<rect x="{width - wide - 3:.2f}" y="3" width="{wide:.2f}" height="16" rx="3" fill="{TAG}"/>'
        f'<text x="{width - wide / 2 - 3:.2f}" y="15" font-size="11" font-weight="700" text-anchor="middle"'
        f' fill="#ffffff">{escaped(shown)}</text></svg>'
    )


def _tenant(
    model: str, left: float, width: float, colour: str, load: float | None, title: str, lines: str
) -> str:
    """The whole in the pale colour, the load in the full one from below; unknown load leaves it pale."""
    shape = f'width="{max(width - 1, 0.5):.2f}" rx="4" fill="{colour}"'
    full = "" if load is None else _load(min(1.0, load), shape)
    over = _over(width, load) if load is not None and overloaded(load) else ""
    return (
        f'<svg class="tenant" data-model="{escaped_attribute(model)}" x="{left:.2f}" y="0"'
        f' width="{width:.2f}" height="{BODY:g}">'
        f"<title>{escaped(title)}</title>"
        f'<rect class="headroom" x=".5" y=".5" height="{BODY - 1:g}" {shape} fill-opacity="{HEADROOM_OPACITY}"/>'
        f"{full}"
        f'<rect x=".75" y=".75" width="{max(width - 1.5, 0.5):.2f}" height="{BODY - 1.5:g}" rx="4" fill="none"'
        f' stroke="{colour}" stroke-width="1.2"/>{over}{lines}</svg>'
    )


def _over(width: float, load: float) -> str:
    """What cannot be met: the slice hatched and framed in red, and its load in per cent."""
    strokes = "".join(f"M{x:g} {BODY:g}L{x + BODY:g} 0" for x in range(-int(BODY), int(width) + 1, 12))
    told = f"{short(math.ceil(100 * load))}%"
    wide = text_width(told, 11, bold=True) + 8
    right = max(width - 4, 1)
    tag = ""
    if wide <= width - 4:
        tag = (
            f'<rect x="{right - wide:.2f}" y="{BODY - 20:g}" width="{wide:.2f}" height="16" rx="3" fill="{OVER}"/>'
            f'<text x="{right - wide + 4:.2f}" y="{BODY - 8:g}" font-size="11" font-weight="700"'
            f' fill="#ffffff">{told}</text>'
        )
    return (
        f'<g class="over"><path d="{strokes}" stroke="{OVER}" stroke-opacity=".3" stroke-width="1.5" fill="none"/>'
        f'<rect x="1.5" y="1.5" width="{max(width - 4, 0.5):.2f}" height="{BODY - 3:g}" rx="4" fill="none"'
        f' stroke="{OVER}" stroke-width="2.5"/>{tag}</g>'
    )


def _load(load: float, shape: str) -> str:
    """Clipped from a whole slice, so that the corners below stay round."""
    height = (BODY - 1) * load
    top = BODY - 0.5 - height
    return (
        f'<svg class="load" x="0" y="{top:.2f}" width="100%" height="{height:.2f}">'
        f'<rect x=".5" y="{0.5 - top:.2f}" height="{BODY - 1:g}" {shape} fill-opacity="{LOAD_OPACITY}"/></svg>'
    )


def _lines(head: str, tenant: Tenant, width: float, *, over: bool) -> str:
    """What fits: everything in a wide slice; profile, wrapped name and throughput in a narrow one."""
    room = width - 11
    if room < 14:
        return ""
    if room >= 70:
        stage = tenant.stage if tenant.stage == tenant.variant else f"{tenant.variant} · {tenant.stage}"
        parts = [
            _line(6, 15, head, 11),
            _line(6, 33, fitted(tenant.model, room, 14, bold=True), 14, bold=True),
            _line(6, 49, fitted(stage, room, 11.5), 11.5),
            *_figures(tenant, room),
        ]
        return "".join(parts)
    size = 10.5
    parts = [_line(5, 15, head, 11)]
    for row, part in enumerate(wrapped(tenant.model, width - 7, size)):
        parts.append(_line(5, 32 + row * 12.5, part, size, bold=True))
    figure = "" if math.isnan(tenant.throughput_rps) else short(tenant.throughput_rps)
    if text_width(figure, 11.5, bold=True) <= width - 7:
        # The load's tag stands below it where it is above 100 %.
        parts.append(_line(5, 75 if over else 90, figure, 11.5, bold=True))
    return "".join(parts)


def _figures(tenant: Tenant, room: float) -> tuple[str, ...]:
    """Throughput and batch of a tenant; none while a plan by hand has not come to a point."""
    if math.isnan(tenant.throughput_rps):
        return ()
    return (
        f'<text x="6" y="72" font-size="12"><tspan font-weight="700">{short(tenant.throughput_rps)}</tspan>'
        " req/s</text>",
        _line(6, 88, fitted(f"batch {tenant.batch_size}", room, 11.5), 11.5),
    )


def _line(x: float, y: float, text: str, size: float, *, bold: bool = False) -> str:
    if not text:
        return ""
    weight = ' font-weight="700"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{weight}>{escaped(text)}</text>'


def _hatched(
    left: float, width: float, lines: tuple[str, ...], title: str, *, faint: bool = False, place: str = ""
) -> str:
    """What nobody uses: hatched, never filled."""
    strokes = "".join(f"M{x:g} {BODY:g}L{x + BODY:g} 0" for x in range(-int(BODY), int(width) + 1, 8))
    texts = "".join(
        _line(5, 15 + row * 17, line, 11)
        for row, line in enumerate(lines)
        if text_width(line, 11) <= width - 7
    )
    dash = ' stroke-dasharray="3 3"' if faint else ""
    return (
        f'<svg class="{"gap" if faint else "free"}"{_chosen_by(place)} x="{left:.2f}" y="0" width="{width:.2f}"'
        f' height="{BODY:g}"><title>{escaped(title)}</title>'
        f'<path d="{strokes}" stroke="currentColor" stroke-opacity=".13" fill="none"/>'
        f'<rect x=".75" y=".75" width="{max(width - 1.5, 0.5):g}" height="{BODY - 1.5:g}" rx="4"'
        f' fill="currentColor" fill-opacity=".03" stroke="currentColor" stroke-opacity=".35"{dash}/>{texts}'
        f"{_edge(place, width)}</svg>"
    )


def _strips(kind: GpuType, group: GpuGroup, top: float) -> str:
    """Memory slots over compute slices; those that no slice takes are outlined only."""
    memory = {
        slot
        for item in group.slices
        for slot in range(item.start, item.start + kind.profile(item.profile).memory_slices)
    }
    compute = sum(kind.profile(item.profile).compute_slices for item in group.slices)
    rows = (
        ("memory", kind.memory_slices, memory, ".28", f"{len(memory)} of {kind.memory_slices} memory slots"),
        (
            "compute",
            kind.compute_slices,
            set(range(compute)),
            ".6",
            f"{compute} of {kind.compute_slices} compute slices",
        ),
    )
    found = []
    for row, (name, count, taken, opacity, title) in enumerate(rows):
        wide = WIDTH / count
        cells = "".join(_cell(index * wide, wide, index in taken, opacity) for index in range(count))
        y = top + row * (_STRIP + _STRIP_GAP)
        found.append(
            f'<svg class="{name}" x="0" y="{y:g}" width="{WIDTH:g}" height="{_STRIP:g}">'
            f"<title>{title} in slices</title>{cells}</svg>"
        )
    return "".join(found)


def _cell(left: float, width: float, taken: bool, opacity: str) -> str:
    look = f'fill-opacity="{opacity}"' if taken else 'fill="none" stroke="currentColor" stroke-opacity=".3"'
    return (
        f'<rect x="{left + GAP / 2 + 0.5:.2f}" y=".5" width="{width - GAP - 1:.2f}" height="{_STRIP - 1:g}"'
        f' rx="2" {look}/>'
    )


def _legend(groups: tuple[GpuGroup, ...], loads: Loads) -> str:
    """Only what the picture shows."""
    blue = '<rect x=".6" y=".6" width="16.8" height="10.8" rx="3" fill="#3f66cc" stroke="#3f66cc"'
    lines = '<path d="M-4 12L8 0M2 12L14 0M8 12L20 0" stroke="currentColor" stroke-opacity=".3" fill="none"/>'
    box = '<rect x=".6" y=".6" width="16.8" height="10.8" rx="3" fill="none" stroke="currentColor" stroke-opacity=".4"'
    hatch = f'<path d="M-4 12L8 0M2 12L14 0M8 12L20 0" stroke="{OVER}" stroke-opacity=".5" fill="none"/>'
    over = (
        f'{hatch}<rect x="1" y="1" width="16" height="10" rx="3" fill="none" stroke="{OVER}" stroke-width="2"'
    )
    slices = [item for group in groups for item in group.slices]
    entries = [
        (any(item.tenants for item in slices), f'{blue} fill-opacity=".5"/>', "load at the planned demand"),
        (any(item.tenants for item in slices), f'{blue} fill-opacity="{HEADROOM_OPACITY}"/>', "headroom"),
        (any(map(overloaded, loads.values())), f"{over}/>", "load above 100 %: the demand is not met"),
        (any(not item.tenants for item in slices), f"{lines}{box}/>", "free slice"),
        (
            any(gaps(gpu_type(group.type), group.slices) for group in groups),
            f'{lines}{box} stroke-dasharray="3 3"/>',
            "no slice there",
        ),
        (bool(groups), '<rect y="3.5" width="18" height="5" rx="2" fill-opacity=".28"/>', "memory slots"),
        (bool(groups), '<rect y="3.5" width="18" height="5" rx="2" fill-opacity=".6"/>', "compute slices"),
    ]
    shown = "".join(
        '<span style="display:inline-flex;align-items:center;gap:.45rem">'
        f'<svg width="18" height="12" viewBox="0 0 18 12" fill="currentColor" aria-hidden="true">{mark}</svg>'
        f"{name}</span>"
        for wanted, mark, name in entries
        if wanted
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;gap:.4rem 1.3rem;margin-top:1.3rem;font-size:.82rem">'
        f"{shown}</div>"
    )


def _title(item: PlannedSlice, tenant: Tenant, load: float | None) -> str:
    memory = "memory n/a" if not tenant.memory_gib else exact(tenant.memory_gib, "GiB")
    share = "" if tenant.share == 1 else f"\n{percent(tenant.share)} of the slice's time"
    if math.isnan(tenant.throughput_rps):
        return f"{tenant.model}\n{place_words(item)}{share}\nnot evaluated: see what is wrong"
    return (
        f"{tenant.model} · {tenant.variant} · {tenant.stage}\n"
        f"{place_words(item)}{share}\n"
        f"{exact(tenant.throughput_rps, 'req/s')}, load at the planned demand {percent(load)}\n"
        f"{_rests_on(tenant)}\n"
        f"batch {tenant.batch_size}, processes {tenant.processes}, {memory}"
    )


def _rests_on(tenant: Tenant) -> str:
    """The interval of what a tenant gives, and its basis."""
    low, high = tenant_interval(tenant)
    ends = "interval n/a"
    if low is not None or high is not None:
        whole = tenant.throughput_rps
        ends = f"90 % interval {exact(whole if low is None else low)} to {exact(whole if high is None else high)}"
    return f"{ends}, {tenant.basis or 'basis n/a'}"


def _spoken(group: GpuGroup) -> str:
    """The card in one sentence, for those who hear it."""
    who = group.ids[0] if len(group.ids) == 1 else f"{len(group.ids)} GPUs alike, first {group.ids[0]}"
    if not group.slices:
        return f"{who}, {group.type}: not used"
    marks = group.marks or ("",) * len(group.slices)
    slices = "; ".join(
        f"{profile_words(item.profile)} "
        + (
            ", ".join(f"{t.model} {t.stage} {short(t.throughput_rps, 'req/s')}" for t in item.tenants)
            or "free"
        )
        + (f", {mark}" if mark else "")
        for item, mark in zip(group.slices, marks, strict=True)
    )
    return f"{who}, {group.type}: {slices}"
