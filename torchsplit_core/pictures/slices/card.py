"""Draws a GPU, or several equal ones, as a card: slices at their true slots, below them memory and compute slices."""

from __future__ import annotations

from torchsplit_core.hardware import gpu_type
from torchsplit_core.pictures.slice_values import GpuGroup, empty_slots, planned_sms, reachable_sms
from torchsplit_core.pictures.slices.descriptions import describe_card, engine_words, gap_words, mode_words
from torchsplit_core.pictures.slices.drawing import BODY, GAP, WIDTH, mark, unused
from torchsplit_core.pictures.slices.tenant import MapStyle, slice_svg
from torchsplit_core.pictures.svg_text import escaped, escaped_attribute, shortened, text_width
from torchsplit_core.values import GpuType

_STRIP, _STRIP_GAP = 5.0, 3.0
_HEAD = 24.0
"""Height of the heading."""
MOST_NAMED = 40
"""Most GPUs that a title names; it counts the rest."""


def card_svg(group: GpuGroup, style: MapStyle, *, places: bool = False) -> str:
    """An SVG element of a group of equal GPUs, with a heading."""
    kind = gpu_type(group.type)
    slot = WIDTH / kind.memory_slices

    def place(start: int) -> str:
        return f"{start} {group.ids[0]}" if places else ""

    parts = [
        (item.start, slice_svg(kind, item, slot, style, place(item.start), other=other))
        for item, other in zip(group.slices, group.others, strict=True)
    ]
    for gap in empty_slots(kind, group.slices):
        label, where = gap_words(group, gap)
        left, width = gap.start * slot + GAP / 2, gap.slots * slot - GAP
        choosable = place(gap.start) if gap.usable or not group.slices else ""
        parts.append((gap.start, unused(left, width, (label,), where, faint=True, place=choosable)))
    # From left to right, the order of screen readers and the keyboard; marks are drawn over them.
    drawn = [part for _, part in sorted(parts, key=lambda part: part[0])]
    for item, word in zip(group.slices, group.marks, strict=False):
        if word:
            width = kind.profile(item.profile).memory_slices * slot - GAP
            drawn.append(mark(item.start * slot + GAP / 2, width, item.profile, word))
    body = f'<svg x="0" y="{_HEAD:g}" width="{WIDTH:g}" height="{BODY:g}">{"".join(drawn)}</svg>'
    below = _HEAD + BODY + 6
    height = below + 2 * _STRIP + _STRIP_GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="100%"'
        # Screen readers must reach selectable slices, but the role "img" hides its children.
        f' role="{"group" if places else "img"}" '
        f'aria-label="{escaped_attribute(describe_card(group))}" fill="currentColor"'
        ' font-family="Source Sans, Source Sans Pro, system-ui, sans-serif">'
        f"{_heading(group, kind)}{body}{_strips(kind, group, below)}</svg>"
    )


def _heading(group: GpuGroup, kind: GpuType) -> str:
    count = len(group.ids)
    times = f" × {count}" if count > 1 else ""
    planned, total = planned_sms(group), reachable_sms(kind, group.slices)
    share = "SMs not sourced" if planned is None or total is None else f"{planned} of {total} SMs planned"
    if kind.divided == "cores":
        busy = sum(kind.profile(item.profile).compute_slices for item in group.slices if item.tenants)
        share = f"{busy} of {kind.compute_slices} cores planned"
    each = " each" if count > 1 else ""
    about = f"{group.type} · {share}{each}"
    if group.engine_gpus > 1:
        about = f"{group.type} · {engine_words(group)}"
    elif group.mig is not None:
        about = f"{group.type} · {mode_words(group.mig)}"
    if group.state is not None:
        about = " · ".join(filter(None, (group.type, mode_words(group.state.mig_enabled))))
    room = WIDTH - text_width(about, 12.5) - text_width(times, 15, bold=True) - 8
    name = shortened(group.ids[0], room, 15, bold=True)
    return (
        f'<g><title>{escaped(listed(group))}</title><text x="0" y="15"><tspan font-size="15" font-weight="700">'
        f'{escaped(name)}{times}</tspan><tspan dx="8" font-size="12.5" fill-opacity=".8">{escaped(about)}</tspan>'
        "</text></g>"
    )


def listed(group: GpuGroup) -> str:
    """The names of the group's GPUs, for a title."""
    more = len(group.ids) - MOST_NAMED
    return ", ".join(group.ids[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _strips(kind: GpuType, group: GpuGroup, top: float) -> str:
    """Two strips, memory slots above compute slices; those outside all slices are only outlined."""
    memory = {
        slot
        for item in group.slices
        for slot in range(item.start, item.start + kind.profile(item.profile).memory_slices)
    }
    compute = sum(kind.profile(item.profile).compute_slices for item in group.slices)
    memory_words = f"{len(memory)} of {kind.memory_slices} memory slots"
    compute_words = f"{compute} of {kind.compute_slices} compute slices"
    rows = (
        ("memory", kind.memory_slices, memory, ".28", memory_words),
        ("compute", kind.compute_slices, set(range(compute)), ".6", compute_words),
    )
    elements = []
    for row, (name, count, taken, opacity, title) in enumerate(rows):
        wide = WIDTH / count
        cells = "".join(_cell(index * wide, wide, index in taken, opacity) for index in range(count))
        y = top + row * (_STRIP + _STRIP_GAP)
        elements.append(
            f'<svg class="{name}" x="0" y="{y:g}" width="{WIDTH:g}" height="{_STRIP:g}">'
            f"<title>{title} in slices</title>{cells}</svg>"
        )
    return "".join(elements)


def _cell(left: float, width: float, taken: bool, opacity: str) -> str:
    fill = f'fill-opacity="{opacity}"' if taken else 'fill="none" stroke="currentColor" stroke-opacity=".3"'
    return (
        f'<rect x="{left + GAP / 2 + 0.5:.2f}" y=".5" width="{width - GAP - 1:.2f}" height="{_STRIP - 1:g}"'
        f' rx="2" {fill}/>'
    )
