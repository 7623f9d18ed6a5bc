"""Draws a plan, or what stands on hosts: a card per GPU, or a row if there are many, as SVG without scripts and styles.

Cards are to scale: a slice is at its true memory slots in its model's colour (each stage of a cut model in a shade of
it), with its load as a gauge below its text; below the slices are the memory slots, then the compute slices. Cut models
follow below the cards with their stages in order. Text has the page's colour (currentColor) and fills are translucent,
so cards fit light and dark themes. All user strings are escaped; exact figures are in titles (on hover) and the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.pictures.colours import UNKNOWN
from torchsplit_core.pictures.numbers import short
from torchsplit_core.pictures.slice_values import (
    GpuGroup,
    Marks,
    decoders,
    gpu_groups,
    place_words,
    ranges,
    slice_table,
    stage_loads,
    state_groups,
)
from torchsplit_core.pictures.slices.card import card_svg
from torchsplit_core.pictures.slices.flow import flow_html
from torchsplit_core.pictures.slices.legend import legend
from torchsplit_core.pictures.slices.row import row_svg
from torchsplit_core.pictures.slices.stages import stage_flows, stage_positions
from torchsplit_core.pictures.slices.tenant import MapStyle
from torchsplit_core.pictures.svg_text import escaped, escaped_attribute
from torchsplit_core.values import HostState, PlanOutcome, PlanRequest

__all__ = ["fleet_svg", "slice_table", "state_svg"]

MOST_CARDS = 8
"""Most groups of equal GPUs drawn as cards; more are drawn as rows, to fit on one screen."""
MOST_ROWS = 36
"""Most rows shown at once; the rest are in a section that opens."""


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
    """HTML of the whole fleet: a card for each group of equal GPUs, and a legend. The card of a group lists its GPUs.
    More than MOST_CARDS groups are drawn as rows.

    `colours` are by model, as from `model_colours`. `request` gives the demands (`slice_values.stage_loads` says what
    replaces them), the order of a cut model's stages and the bytes of its cuts. `marks` frames slices and puts a word
    on each ("new", "goes"). With `places` slices and gaps can be selected: `data-place` has the first memory slot and
    the id of the (first) GPU, see `components.picture`. `find` keeps the cards with that text in the name of a GPU,
    GPU type, profile or model. `busy` replaces the loads by the share of time that each tenant works, by GPU, start of
    the slice, model and stage; equal GPUs show their mean.

    Show the result with `components.picture`, since `st.html` removes SVG elements. Callers rely on the escaping here.
    The result is one line, since a blank line would end the HTML in Markdown.
    """
    style = MapStyle(
        colours, stage_loads(plan, request), stage_positions(plan, request), decoders=decoders(request)
    )
    if busy is not None:
        style = replace(style, busy={})
    below = "".join(flow_html(flow, colours.get(flow.model, UNKNOWN)) for flow in stage_flows(plan, request))
    return _map_html(gpu_groups(plan, marks), style, places=places, find=find, busy=busy, below=below)


def state_svg(
    state: HostState,
    colours: Mapping[str, str],
    marks: Marks | None = None,
    *,
    places: bool = False,
    find: str = "",
) -> str:
    """HTML of what stands on the GPUs of hosts, drawn as `fleet_svg` draws a plan.

    Instances that somebody uses whom no plan placed, or may use, are grey and say who: the names, or "unknown tenants".
    Tenants of plans have no load, which is not known. `marks`, `places` and `find` as in `fleet_svg`.
    """
    return _map_html(state_groups(state, marks), MapStyle(colours, {}, {}), places=places, find=find)


def _map_html(
    every: tuple[GpuGroup, ...],
    style: MapStyle,
    *,
    places: bool,
    find: str,
    busy: Mapping[tuple[str, int, str, str], float] | None = None,
    below: str = "",
) -> str:
    """The cards, what stands `below` them, and the legend."""
    groups = tuple(group for group in every if _matches(group, find))
    # Decided by the whole fleet, so that a search does not change how the map is drawn.
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
    return f"<div>{shown}{below}{legend(groups, style, strips=not compact)}</div>"


def _with_utilisation(
    style: MapStyle, group: GpuGroup, busy: Mapping[tuple[str, int, str, str], float] | None
) -> MapStyle:
    """The style of one card, with the mean utilisation of its GPUs."""
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
    """Rows, in two columns if wide enough; sections that open have the rows after MOST_ROWS and list equal GPUs."""
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
    """Whether a name on the card contains the text, ignoring case."""
    wanted = find.strip().casefold()
    names = [*group.ids, group.type]
    names += [
        name for item in group.slices for name in (item.profile, *(tenant.model for tenant in item.tenants))
    ]
    names += group.others
    return any(wanted in name.casefold() for name in names)


def _member_list(group: GpuGroup) -> str:
    """A section that opens and lists the equal GPUs; only one card's is open at a time."""
    if len(group.ids) == 1:
        return ""
    slices = "".join(
        f"<li>{escaped(place_words(item))}: "
        + (
            ", ".join(
                [
                    *(f"{escaped(who.model)} {short(who.throughput_rps, 'req/s')}" for who in item.tenants),
                    *filter(None, (escaped(other),)),
                ]
            )
            or "free"
        )
        + "</li>"
        for item, other in zip(group.slices, group.others, strict=True)
    )
    each = f"<ul>{slices}</ul>" if slices else ""
    return (
        f'<details class="alike" name="alike" data-group="{escaped_attribute(group.ids[0])}">'
        f"<summary>{len(group.ids)} GPUs alike</summary><p>{escaped(ranges(group.ids))}</p>{each}</details>"
    )
