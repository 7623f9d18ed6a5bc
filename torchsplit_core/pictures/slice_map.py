"""A plan as a picture: one card a GPU, or a row where there are many, as SVG that needs no script and no style sheet.

Each card is to scale: a slice stands at its true memory slots in its model's colour (a shade a stage
where the model is cut), its load is a gauge under its words, and under it are the memory slots over
the compute slices. Cut models stand once more below the cards, their stages in order. Text takes the
page's colour (currentColor) and fills are translucent, so a card suits light and dark alike.
Every string of a user is escaped; exact figures are in titles (on hover) and in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.pictures.colours import UNKNOWN
from torchsplit_core.pictures.numbers import short
from torchsplit_core.pictures.slice_values import (
    GpuGroup,
    Marks,
    gpu_groups,
    place_words,
    ranges,
    slice_table,
    stage_loads,
)
from torchsplit_core.pictures.slices.card import card_svg
from torchsplit_core.pictures.slices.flow import flow_html
from torchsplit_core.pictures.slices.legend import legend
from torchsplit_core.pictures.slices.row import row_svg
from torchsplit_core.pictures.slices.stages import stage_flows, stage_positions
from torchsplit_core.pictures.slices.tenant import MapStyle
from torchsplit_core.pictures.svg_text import escaped, escaped_attribute
from torchsplit_core.values import PlanOutcome, PlanRequest

__all__ = ["fleet_svg", "slice_table"]

MOST_CARDS = 8
"""Kinds of GPU up to which each is a card; more are a row each, so that they stand in one screen."""
MOST_ROWS = 36
"""So many rows stand open; what more there are is behind a line that opens."""


def fleet_svg(
    plan: PlanOutcome,
    colours: Mapping[str, str],
    request: PlanRequest | None = None,
    marks: Marks | None = None,
    *,
    places: bool = False,
    find: str = "",
    busy: Mapping[tuple[str, int, str, str], float] | None = None,
) -> str:
    """HTML of the whole fleet: cards of equal GPUs side by side, and a legend. A card of several opens to say which.
    Of more than MOST_CARDS kinds each is a row.

    `marks` frames slices and says a word in each ("new", "goes"). With `places` every slice and gap can be
    chosen: `data-place` has its first memory slot and the id of its (first) GPU, see `components.picture`.
    `colours` by model as from `model_colours`. `request` says the demands (see `slice_values.stage_loads` for what
    stands in without it), in which order the stages of a cut model run and what its cuts carry. `find` leaves the
    cards that have it in a name of a GPU, its type, a profile or a model. `busy` draws in place of the loads how much
    of its time each tenant works, by GPU, slice's start, model and stage; of GPUs that are alike their mean.

    Show it with `components.picture`: `st.html` drops every SVG element. Whoever shows it relies
    on the escaping here. It is one line, since a blank one would end the HTML for Markdown.
    """
    every = gpu_groups(plan, marks)
    groups = tuple(group for group in every if _matches(group, find))
    style = MapStyle(colours, stage_loads(plan, request), stage_positions(plan, request))
    if busy is not None:
        style = replace(style, busy={})
    # By the whole fleet: what is looked for does not change how the map is drawn.
    compact = len(every) > MOST_CARDS
    draw = row_svg if compact else card_svg
    drawn = [draw(group, _with_utilisation(style, group, busy), places=places) for group in groups]
    if compact:
        shown = _rows(groups, drawn)
    else:
        shown = _grid(
            [f"<div>{card}{_member_list(group)}</div>" for group, card in zip(groups, drawn, strict=True)]
        )
    if every and not groups:
        shown = f"<p>No GPU, slice or model has {escaped(find.strip())} in its name.</p>"
    below = "".join(flow_html(flow, colours.get(flow.model, UNKNOWN)) for flow in stage_flows(plan, request))
    return f"<div>{shown}{below}{legend(groups, style, strips=not compact)}</div>"


def _with_utilisation(
    style: MapStyle, group: GpuGroup, busy: Mapping[tuple[str, int, str, str], float] | None
) -> MapStyle:
    """The look of one card, with what its GPUs do on average."""
    if busy is None:
        return style
    utilisation = {}
    for item in group.slices:
        for tenant in item.tenants:
            keys = [(gpu, item.start, tenant.model, tenant.stage) for gpu in group.ids]
            shares = [busy[key] for key in keys if key in busy]
            if shares:
                utilisation[item.start, tenant.model, tenant.stage] = sum(shares) / len(shares)
    return replace(style, busy=utilisation)


def _rows(groups: tuple[GpuGroup, ...], drawn: list[str]) -> str:
    """Rows in two columns where there is room; the last ones, and which GPUs are alike, behind lines that open."""
    shown = _grid([f"<div>{row}</div>" for row in drawn[:MOST_ROWS]], gap=".3rem 1.8rem")
    if len(drawn) > MOST_ROWS:
        gpus = sum(len(group.ids) for group in groups[MOST_ROWS:])
        rest = _grid([f"<div>{row}</div>" for row in drawn[MOST_ROWS:]], gap=".3rem 1.8rem")
        shown += (
            '<details class="alike" data-group="more"><summary>'
            f"{len(drawn) - MOST_ROWS} more kinds, {gpus} GPUs</summary>{rest}</details>"
        )
    alike = [group for group in groups if len(group.ids) > 1]
    if alike:
        which = "".join(f"<li>{len(group.ids)}: {escaped(ranges(group.ids))}</li>" for group in alike)
        shown += (
            '<details class="alike" data-group="which"><summary>Which GPUs are alike</summary>'
            f"<ul>{which}</ul></details>"
        )
    return shown


def _grid(cards: list[str], *, gap: str = "1.1rem 1.8rem") -> str:
    return (
        f'<div class="gpus" style="display:grid;gap:{gap};'
        f'grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr))">{"".join(cards)}</div>'
    )


def _matches(group: GpuGroup, find: str) -> bool:
    """Whether what is looked for is part of a name on the card, whatever the case."""
    wanted = find.strip().casefold()
    names = [*group.ids, group.type]
    names += [
        name for item in group.slices for name in (item.profile, *(tenant.model for tenant in item.tenants))
    ]
    return any(wanted in name.casefold() for name in names)


def _member_list(group: GpuGroup) -> str:
    """Of equal GPUs, which they are, behind a line that opens; one card is open at a time."""
    if len(group.ids) == 1:
        return ""
    slices = "".join(
        f"<li>{escaped(place_words(item))}: "
        + (
            ", ".join(
                f"{escaped(tenant.model)} {short(tenant.throughput_rps, 'req/s')}" for tenant in item.tenants
            )
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
