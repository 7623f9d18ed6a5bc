"""A placement as a picture: the pipeline in its order, and under it the nodes with every GPU a cell.

HTML with small SVGs that wrap in a narrow window. Text takes the page's colour and fills are translucent, so it
suits light and dark alike; a segment has its number as well as its colour. What is unused is hatched, and equal
unused GPUs are one cell with their count. Every string of a user is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from torchsplit_core.pictures.colours import LOAD_OPACITY, PALETTE, model_colours
from torchsplit_core.pictures.numbers import THIN, exact, short
from torchsplit_core.pictures.svg_text import escaped, escaped_attribute, fitted
from torchsplit_core.values import PlacedSegment, PlacementGpu, PlacementOutcome, PlacementRequest
from torchsplit_core.values.placement import GpuId

CARD, LINK, CARD_HEIGHT = 168.0, 104.0, 108.0
CELL, CELL_HEIGHT, ROW = 24.0, 24.0, 8
WIDE_UNUSED = ROW * CELL - 2
"""Pixels: cards of the pipeline, links between them, cells of GPUs, how many beside each other."""
MOST_CARDS = 16
"""A longer pipeline shows its ends and what bounds it; equal neighbours between them are one card."""
JOINED = 4
"""So many equal neighbours or more are one card in any pipeline."""
MANY_NODES, SMALL = 32, 9.0
"""From so many nodes on a GPU is a cell of so many pixels without words: they stay in one screen."""


@dataclass(frozen=True)
class NodeGroup:
    """GPUs that stand together: a node where ids are NODE/GPU, else all of one type."""

    name: str
    gpus: tuple[PlacementGpu, ...]


@dataclass(frozen=True)
class GpuAssignment:
    """What a GPU serves: a segment by its place, of a pipeline by its number where there are several."""

    part: PlacedSegment
    segment: int
    pipeline: int | None


def colour_of(pipeline: int) -> str:
    """The colour of a pipeline, by its number; colours repeat."""
    return PALETTE[pipeline % len(PALETTE)]


def type_colours(request: PlacementRequest) -> dict[str, str]:
    """A colour for each GPU type, in the order of the fleet."""
    return model_colours(gpu.type for gpu in request.gpus)


def slowest(outcome: PlacementOutcome) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The segments and the links that are as slow as the whole, by their places."""
    limit = (outcome.throughput or 0.0) * (1 + 1e-9)
    return (
        tuple(place for place, part in enumerate(outcome.segments) if part.throughput <= limit),
        tuple(place for place, link in enumerate(outcome.links) if link.throughput <= limit),
    )


def groups(request: PlacementRequest) -> tuple[NodeGroup, ...]:
    """The fleet by nodes, or by types where an id names no node, in the order of the fleet."""
    named = all("/" in str(gpu.id) for gpu in request.gpus)
    by_name: dict[str, list[PlacementGpu]] = {}
    for gpu in request.gpus:
        by_name.setdefault(str(gpu.id).rpartition("/")[0] if named else gpu.type, []).append(gpu)
    return tuple(NodeGroup(name, tuple(gpus)) for name, gpus in by_name.items())


def pipeline_html(outcome: PlacementOutcome, request: PlacementRequest) -> str:
    """Segments in their order with layers and GPUs, each after the link that leads to it; what bounds all is framed.

    A link stands with the segment that it leads to, so that in a new line the arrow comes from the line above.
    """
    types, colours = {gpu.id: gpu.type for gpu in request.gpus}, type_colours(request)
    slow_segments, slow_links = slowest(outcome)
    # Where everything is equally slow, a frame around each would say nothing.
    framed = set(slow_segments) if len(slow_segments) < max(2, len(outcome.segments)) else set()
    parts: list[str] = []
    for run in _segment_runs(outcome, types, framed, set(slow_links)):
        kinds = {types[gpu] for place in run for gpu in outcome.segments[place].gpu_ids}
        colour = colours[kinds.pop()] if len(kinds) == 1 else ""
        link = _link(outcome, run[0] - 1, run[0] - 1 in slow_links) if run[0] else ""
        card = (
            _card(outcome, run, types, run[0] in framed, colour)
            if len(run) == 1
            else _collapsed_card(outcome, run, types, colour, framed=run[0] in framed and run[-1] in framed)
        )
        parts.append(f'<div style="display:flex;max-width:100%">{link}{card}</div>')
    return f'<div style="display:flex;flex-wrap:wrap;row-gap:8px">{"".join(parts)}</div>'


def topology_html(outcome: PlacementOutcome, request: PlacementRequest) -> str:
    """Every node with its GPUs; nodes that are equal and unused are one box with their count.

    Several pipelines have a colour each, else a GPU has that of its type. Of very many nodes the cells are small.
    """
    colours = type_colours(request)
    pipelines = [replica.segments for replica in outcome.replicas] or [outcome.segments]
    home = {
        gpu: GpuAssignment(part, place, number if len(pipelines) > 1 else None)
        for number, parts in enumerate(pipelines)
        for place, part in enumerate(parts)
        for gpu in part.gpu_ids
    }
    small = len({str(gpu).rpartition("/")[0] for gpu in home}) > MANY_NODES
    boxes: list[str] = []
    unused: dict[tuple[str, ...], list[NodeGroup]] = {}
    for group in groups(request):
        if any(gpu.id in home for gpu in group.gpus):
            boxes.append((_small_box if small else _box)(group, home, colours))
        else:
            unused.setdefault(tuple(gpu.type for gpu in group.gpus), []).append(group)
    boxes += [_unused_box(alike) for alike in unused.values()]
    gap = "6px" if small else "10px 14px"
    return f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:{gap}">{"".join(boxes)}</div>'


def _segment_runs(
    outcome: PlacementOutcome, types: dict[GpuId, str], framed: set[int], slow_links: set[int]
) -> list[list[int]]:
    """The places of segments, neighbours that are alike in one run where the pipeline is long."""
    places = range(len(outcome.segments))
    brief = len(places) <= MOST_CARDS
    links = {*slow_links, *(link + 1 for link in slow_links)}
    single = links if brief else {0, len(places) - 1, *framed, *links}
    # So many that bound it are no exception: they are folded too.
    if len(single) > MOST_CARDS:
        single = {0, len(places) - 1, *sorted(framed)[:2], *sorted(slow_links)[:2]}

    def look(place: int) -> tuple[object, ...]:
        part = outcome.segments[place]
        kinds = tuple(sorted(types[gpu] for gpu in part.gpu_ids))
        alone = place if place in single else None
        return (alone, brief and place in framed, part.end_layer - part.start_layer, kinds)

    runs = [list(run) for _, run in groupby(places, key=look)]
    if brief:
        return [
            part for run in runs for part in ([run] if len(run) >= JOINED else [[place] for place in run])
        ]
    return runs if len(runs) <= 2 * MOST_CARDS else _split_runs(single, len(places))


def _split_runs(single: set[int], count: int) -> list[list[int]]:
    """Every segment of its own, and between these one run each."""
    return [list(run) for _, run in groupby(range(count), key=lambda place: place if place in single else -1)]


def _card(
    outcome: PlacementOutcome, run: Sequence[int], types: dict[GpuId, str], framed: bool, colour: str
) -> str:
    (place,) = run
    part = outcome.segments[place]
    ids = ", ".join(map(str, part.gpu_ids))
    layers = _format_layers(part.start_layer, part.end_layer)
    lines = (
        (f"{place + 1}. {layers}", True),
        (_describe_counts(types[gpu] for gpu in part.gpu_ids), False),
        (ids, False),
        (short(part.throughput, "tokens/s"), framed),
        ("slowest" if framed else "", True),
    )
    title = f"Segment {place + 1}: {layers} on {ids}, {exact(part.throughput, 'tokens/s')}"
    return _card_svg(CARD, title, lines, colour=colour, framed=framed)


def _collapsed_card(
    outcome: PlacementOutcome, run: Sequence[int], types: dict[GpuId, str], colour: str, *, framed: bool
) -> str:
    """Segments between those shown, in one card."""
    parts = [outcome.segments[place] for place in run]
    layers = sorted({part.end_layer - part.start_layer + 1 for part in parts})
    gpus = sum(len(part.gpu_ids) for part in parts)
    slow = min(part.throughput for part in parts)
    each = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"
    lines = (
        (f"{run[0] + 1}–{run[-1] + 1}: {len(run)} segments", True),
        (f"{each} layer{'s' if each != '1' else ''} each", False),
        (
            _describe_counts(types[gpu] for part in parts for gpu in part.gpu_ids)
            if colour
            else f"{gpus} GPUs",
            False,
        ),
        (f"from {short(slow, 'tokens/s')}", framed),
        ("slowest" if framed else "", True),
    )
    title = f"Segments {run[0] + 1} to {run[-1] + 1}: the slowest gives {exact(slow, 'tokens/s')}; the table has each"
    return _card_svg(CARD, title, lines, colour=colour, framed=framed)


def _link(outcome: PlacementOutcome, place: int, slow: bool) -> str:
    value = outcome.links[place].throughput
    unit = "tokens/s" if outcome.units == "tokens_per_s" else "batches/s"
    y, weight = CARD_HEIGHT / 2, 3 if slow else 1.5
    return (
        f'<svg class="link" width="{LINK:g}" height="{CARD_HEIGHT:g}" viewBox="0 0 {LINK:g} {CARD_HEIGHT:g}">'
        f"<title>Link {place + 1} to {place + 2}: {exact(value, unit)}</title>"
        f'<path d="M4 {y:g}H{LINK - 6:g}m-7 -5l7 5l-7 5" fill="none" stroke="currentColor" stroke-width="{weight:g}"/>'
        + _text(LINK / 2, y - 9, short(value), LINK, bold=slow, middle=True)
        + _text(LINK / 2, y + 18, unit, LINK, middle=True)
        + (_text(LINK / 2, y + 34, "slowest", LINK, bold=True, middle=True) if slow else "")
        + "</svg>"
    )


def _card_svg(
    width: float, title: str, lines: Sequence[tuple[str, bool]], *, colour: str, framed: bool
) -> str:
    stroke, weight = ("currentColor", 3.0) if framed else (colour or "currentColor", 1.5)
    fill = (
        f'fill="{colour}" fill-opacity="{LOAD_OPACITY / 2:g}"'
        if colour
        else 'fill="none" stroke-dasharray="5 3"'
    )
    texts = "".join(
        _text(10, 21 + 19 * row, text, width - 20, bold=bold) for row, (text, bold) in enumerate(lines)
    )
    return (
        f'<svg class="segment" width="{width:g}" height="{CARD_HEIGHT:g}" viewBox="0 0 {width:g} {CARD_HEIGHT:g}">'
        f'<title>{escaped(title)}</title><rect x="2" y="2" width="{width - 4:g}" height="{CARD_HEIGHT - 4:g}" rx="6"'
        f' {fill} stroke="{stroke}" stroke-width="{weight:g}"/>{texts}</svg>'
    )


def _box(group: NodeGroup, home: dict[GpuId, GpuAssignment], colours: Mapping[str, str]) -> str:
    """One node: a cell for each GPU in use with its segment's number, then the unused ones by type."""
    used = [gpu for gpu in group.gpus if gpu.id in home]
    cells = [
        _cell(place % ROW * CELL, place // ROW * CELL_HEIGHT, gpu, home[gpu.id], colours)
        for place, gpu in enumerate(used)
    ]
    top = ((len(used) + ROW - 1) // ROW) * CELL_HEIGHT
    rest: dict[str, int] = {}
    for gpu in group.gpus:
        if gpu.id not in home:
            rest[gpu.type] = rest.get(gpu.type, 0) + 1
    for row, (kind, count) in enumerate(rest.items()):
        cells.append(_unused(top + row * CELL_HEIGHT, count, kind))
    return _node(
        group.name, _describe_counts(gpu.type for gpu in group.gpus), cells, top + len(rest) * CELL_HEIGHT
    )


def _small_box(group: NodeGroup, home: dict[GpuId, GpuAssignment], colours: Mapping[str, str]) -> str:
    """One of very many nodes: a small cell for each GPU, its words on hover; hollow is unused."""
    rows = (len(group.gpus) + ROW - 1) // ROW
    cells = []
    for place, gpu in enumerate(group.gpus):
        x, y = place % ROW * SMALL, place // ROW * SMALL
        seat = home.get(gpu.id)
        colour = "" if seat is None else _assignment_colour(gpu, seat, colours)
        look = (
            f'fill="{colour}" fill-opacity="{LOAD_OPACITY * 2:g}" stroke="{colour}"'
            if colour
            else 'fill="none" stroke="currentColor" stroke-opacity=".35"'
        )
        title = f"{gpu.id}: {gpu.type}, unused" if seat is None else _describe_assignment(gpu, seat)
        cells.append(
            f'<svg class="gpu" data-gpu="{escaped_attribute(str(gpu.id))}" x="{x:g}" y="{y:g}" width="{SMALL:g}"'
            f' height="{SMALL:g}"><title>{escaped(title)}</title><rect x=".5" y=".5" width="{SMALL - 1.5:g}"'
            f' height="{SMALL - 1.5:g}" rx="1.5" {look}/></svg>'
        )
    width, height = ROW * SMALL, rows * SMALL
    return (
        f'<svg class="node" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}">'
        f"<title>{escaped(group.name)}: {escaped(_describe_counts(gpu.type for gpu in group.gpus))}</title>"
        f"{''.join(cells)}</svg>"
    )


def _unused_box(equal_groups: Sequence[NodeGroup]) -> str:
    each = _describe_counts(gpu.type for gpu in equal_groups[0].gpus)
    count = sum(len(group.gpus) for group in equal_groups)
    if len(equal_groups) == 1:
        return _node(equal_groups[0].name, each, [_unused(0, count, "")], CELL_HEIGHT)
    name, last = f"{len(equal_groups)} nodes", equal_groups[-1].name
    return _node(
        name, f"each {each}", [_unused(0, count, "")], CELL_HEIGHT, f", {equal_groups[0].name} to {last}"
    )


def _node(name: str, note: str, cells: Sequence[str], height: float, more: str = "") -> str:
    width = ROW * CELL
    return (
        f'<svg class="node" width="{width:g}" height="{height + 40:g}" viewBox="0 0 {width:g} {height + 40:g}">'
        f"<title>{escaped(name + more)}: {escaped(note)}</title>{_text(0, 14, name, width, bold=True)}"
        f'{_text(0, 31, note, width)}<svg y="38" width="{width:g}" height="{height + 2:g}">{"".join(cells)}</svg></svg>'
    )


def _assignment_colour(gpu: PlacementGpu, assignment: GpuAssignment, colours: Mapping[str, str]) -> str:
    return colours[gpu.type] if assignment.pipeline is None else colour_of(assignment.pipeline)


def _describe_assignment(gpu: PlacementGpu, assignment: GpuAssignment) -> str:
    part = assignment.part
    whose = "" if assignment.pipeline is None else f"pipeline {assignment.pipeline + 1}, "
    words = (
        f"{gpu.id}: {gpu.type}, {whose}segment {assignment.segment + 1}, "
        f"{_format_layers(part.start_layer, part.end_layer)}"
    )
    if part.memory_gib:
        need = part.memory_gib[part.gpu_ids.index(gpu.id)]
        words += f", needs {exact(need, 'GiB')} of {exact(gpu.memory_gib, 'GiB')}"
    return words


def _cell(
    x: float, y: float, gpu: PlacementGpu, assignment: GpuAssignment, colours: Mapping[str, str]
) -> str:
    colour, title = _assignment_colour(gpu, assignment, colours), _describe_assignment(gpu, assignment)
    return (
        f'<svg class="gpu" data-gpu="{escaped_attribute(str(gpu.id))}" x="{x:g}" y="{y:g}" width="{CELL:g}"'
        f' height="{CELL_HEIGHT:g}"><title>{escaped(title)}</title><rect x="1" y="1" width="{CELL - 3:g}"'
        f' height="{CELL_HEIGHT - 3:g}" rx="3" fill="{colour}" fill-opacity="{LOAD_OPACITY:g}" stroke="{colour}"/>'
        f"{_text(CELL / 2 - 0.5, 17, str(assignment.segment + 1), CELL, middle=True)}</svg>"
    )


def _unused(y: float, count: int, kind: str) -> str:
    text = f"{count} {kind} unused" if kind else f"{count} unused"
    strokes = "".join(
        f"M{x} {CELL_HEIGHT - 2:g}l20 -{CELL_HEIGHT - 4:g}" for x in range(0, int(WIDE_UNUSED) - 18, 9)
    )
    return (
        f'<svg class="unused" y="{y:g}" width="{ROW * CELL:g}" height="{CELL_HEIGHT:g}"><title>{escaped(text)}</title>'
        f'<path d="{strokes}" stroke="currentColor" stroke-opacity=".13" fill="none"/>'
        f'<rect x="1" y="1" width="{WIDE_UNUSED:g}" height="{CELL_HEIGHT - 3:g}" rx="3" fill="none"'
        f' stroke="currentColor" stroke-opacity=".35"/>{_text(7, 17, text, WIDE_UNUSED - 12)}</svg>'
    )


def _text(x: float, y: float, text: str, room: float, *, bold: bool = False, middle: bool = False) -> str:
    look = (' font-weight="700"' if bold else "") + (' text-anchor="middle"' if middle else "")
    shown = escaped(fitted(text, room, 12, bold=bold))
    return f'<text x="{x:g}" y="{y:g}" font-size="12" fill="currentColor"{look}>{shown}</text>'


def _format_layers(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first}–{last}"


def _describe_counts(types: Iterable[str]) -> str:
    """2 × H100 + 1 × A10, in the order of their first."""
    counts: dict[str, int] = {}
    for kind in types:
        counts[kind] = counts.get(kind, 0) + 1
    return " + ".join(f"{count}{THIN}×{THIN}{kind}" for kind, count in counts.items())
