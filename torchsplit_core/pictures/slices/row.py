"""Draws a GPU, or several equal ones, as a row, for fleets whose cards would fill several screens.

Slices are to scale at their true slots, as on a card; text that does not fit is in the titles and the table.
"""

from __future__ import annotations

import math

from torchsplit_core.hardware import gpu_type
from torchsplit_core.pictures.numbers import short
from torchsplit_core.pictures.slice_values import GpuGroup, empty_slots
from torchsplit_core.pictures.slices.card import listed
from torchsplit_core.pictures.slices.descriptions import describe_card, gap_words
from torchsplit_core.pictures.slices.drawing import GAP, WIDTH, line, mark, unused
from torchsplit_core.pictures.slices.stages import StagePosition
from torchsplit_core.pictures.slices.tenant import MapStyle, SliceStyle, slice_svg
from torchsplit_core.pictures.svg_text import escaped, escaped_attribute, shortened, text_width
from torchsplit_core.values import Tenant

HEIGHT, HEAD = 34.0, 92.0
"""Pixels: height of a row, width of the GPU's name before its slices."""
TAG_ROOM = 34.0
"""Pixels of the tag with the load of an overloaded slice."""
SMALL = 40.0
"""Width in pixels up to which a slice shows no profile beside the throughput."""


def row_svg(group: GpuGroup, style: MapStyle, *, places: bool = False) -> str:
    """An SVG element of one row for a group of equal GPUs."""
    kind = gpu_type(group.type)
    slot = (WIDTH - HEAD) / kind.memory_slices

    def place(start: int) -> str:
        return f"{start} {group.ids[0]}" if places else ""

    parts = [
        (item.start, slice_svg(kind, item, slot, style, place(item.start), ROW, other=other))
        for item, other in zip(group.slices, group.others, strict=True)
    ]
    for gap in empty_slots(kind, group.slices):
        label, title = gap_words(group, gap)
        choosable = place(gap.start) if gap.usable or not group.slices else ""
        left, width = gap.start * slot + GAP / 2, gap.slots * slot - GAP
        parts.append(
            (gap.start, unused(left, width, (label,), title, faint=True, place=choosable, height=HEIGHT))
        )
    drawn = [part for _, part in sorted(parts, key=lambda part: part[0])]
    for item, word in zip(group.slices, group.marks, strict=False):
        if word:
            width = kind.profile(item.profile).memory_slices * slot - GAP
            drawn.append(mark(item.start * slot + GAP / 2, width, item.profile, word, HEIGHT))
    body = f'<svg x="{HEAD:g}" y="0" width="{WIDTH - HEAD:g}" height="{HEIGHT:g}">{"".join(drawn)}</svg>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="100%"'
        f' role="{"group" if places else "img"}" '
        f'aria-label="{escaped_attribute(describe_card(group))}" fill="currentColor"'
        ' font-family="Source Sans, Source Sans Pro, system-ui, sans-serif">'
        f"{_head(group)}{body}</svg>"
    )


def _head(group: GpuGroup) -> str:
    times = f" × {len(group.ids)}" if len(group.ids) > 1 else ""
    room = HEAD - 8
    name = shortened(group.ids[0], room - text_width(times, 12, bold=True), 12, bold=True)
    return (
        f"<g><title>{escaped(listed(group))}</title>"
        f'<text x="0" y="14" font-size="12" font-weight="700">{escaped(name)}{times}</text>'
        f'<text x="0" y="28" font-size="10" opacity=".8">{escaped(shortened(group.type, room, 10))}</text></g>'
    )


def _labels(head: str, tenant: Tenant, stage: StagePosition | None, width: float, over: bool) -> str:
    """The model's name; below it stage, throughput and profile as far as they fit."""
    room = width - 8
    if room < 14:
        return ""
    figure = "" if math.isnan(tenant.throughput_rps) else short(tenant.throughput_rps)
    text = ""
    # Parts are whole or omitted: a truncated number is a different number. The load's tag leaves less room.
    free = room - (TAG_ROOM if over else 0)
    for part in filter(None, (stage.short if stage else "", figure, head if width > SMALL else "")):
        longer = f"{text} · {part}" if text else part
        text = longer if text_width(longer, 10) <= free else text
    return line(4, 13, shortened(tenant.model, room, 10.5, bold=True), 10.5, bold=True) + line(
        4, 25, text, 10
    )


ROW = SliceStyle(HEIGHT, HEIGHT - 5, 3.0, 9.0, 0.0, _labels, free=False)
"""The style of a slice in a row."""
