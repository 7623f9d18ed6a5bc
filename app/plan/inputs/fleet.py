"""GPUs of a scenario as rows: type, count, MIG, cost and node, behind a fold their ids and layouts; and the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.components.field_rows import Column, Edit, Row, field_rows
from app.plan.inputs.fields import FACTORS, edited, matched, number, row, whole
from app.plan.inputs.ground import Ground, checked
from torchsplit_core.hardware import catalogue, without_mig
from torchsplit_core.pictures.numbers import exact
from torchsplit_core.planning.request.fleet import left_whole
from torchsplit_core.planning.request.fleet_text import layouts_text, parse_layouts
from torchsplit_core.values import FleetEntry, PlanRequest

MOST_STEPS = 64
"""Counts that a slider has one by one; of larger fleets it has multiples of the stored one."""
COLUMNS = (
    Column("type", "GPU type", "choice", "minmax(6rem, 8.2rem)", 4, empty="Add a type …"),
    Column("count", "count", width="3.2rem", slider=True),
    Column("mig", "MIG", "check", "1.8rem", help="Off: the GPU is left whole."),
    Column(
        "cost",
        "price",
        width="3.2rem",
        empty="none",
        help="Of each GPU an hour, in any currency. Empty: none given; the objective fewest GPUs counts it 1.",
    ),
    Column("node", "node", "text", "4rem", help="GPUs of one node share its link.", empty="own"),
)
MORE = (
    Column("id", "id", "text", quarters=2, empty="gpu0, gpu1, …", help="A GPU with an id stands once."),
    Column(
        "layouts", "layouts", "text", quarters=4, empty="every legal one",
        help="For example 7x1g.10gb/3g.40gb+4g.40gb.",
    ),
)  # fmt: skip
LABELS = {column.id: column.label for column in (*COLUMNS, *MORE)}
LINKS = (
    Column(
        "link_gb_per_s", "Link, GB/s", quarters=2, empty="free",
        help="Between the stages of a cut model, in 10⁹ bytes a second. Empty: transfers take no time.",
    ),
    Column(
        "network_gb_per_s", "Network, GB/s", quarters=2, empty="as the link",
        help="Holds for a cut model whose stages stand on GPUs of several nodes, where it is the slower one.",
    ),
)  # fmt: skip


def show(ground: Ground) -> None:
    """The rows of the fleet, and one to add to it."""
    columns = _columns(ground)
    before, now = ground.stored.gpus, ground.current.gpus
    rows, last = [], len(now) == 1
    for place, match in enumerate(matched(before, now, _kind)):
        was = None if match.stored is None else before[match.stored]
        if match.current is None:
            assert was is not None
            name = f"{exact(was.count)} × {was.type}"
            rows.append(Row(str(place), name, name=name, state="gone"))
            continue
        entry = now[match.current]
        rows.append(
            row(
                ground, "fleet", str(place), entry.type, (*columns, *MORE), _values(entry),
                _values(was) if was else None, stops={"count": count_stops(entry, was)},
                remove="" if last else f"Remove {entry.type}",
                locked=() if entry.type in catalogue() else ("mig", "layouts"),
            )
        )  # fmt: skip
    rows.append(Row(str(len(rows)), "another GPU type", {"type": ""}, state="blank"))
    field_rows(
        "Fleet", columns, rows, key=ground.key("fleet"), more=MORE,
        on_edits=partial(take, ground),
    )  # fmt: skip


def take(ground: Ground, edits: Sequence[Edit]) -> None:
    """Take edits of the fleet over into the draft."""
    ground.take("fleet", edits, lambda request, made: changed(ground.stored, request, made))


def first_row(ground: Ground) -> tuple[str, FleetEntry, FleetEntry | None]:
    """Of the draft's first entry the id of its row, itself, and what it is as stored."""
    matches = matched(ground.stored.gpus, ground.current.gpus, _kind)
    place, match = next((place, match) for place, match in enumerate(matches) if match.current == 0)
    stored = None if match.stored is None else ground.stored.gpus[match.stored]
    return str(place), ground.current.gpus[0], stored


def links(ground: Ground) -> None:
    """How fast the stages of a cut model hand on what crosses its cuts."""

    def values(request: PlanRequest) -> dict[str, Any]:
        return {column.id: getattr(request, column.id) for column in LINKS}

    def changed(request: PlanRequest, made: Edit) -> PlanRequest:
        label = next(column.label for column in LINKS if column.id == made.field)
        speed: dict[str, Any] = {made.field: number(made.value, label)}
        return checked(replace(request, **speed), label, request.models[:1])

    shown = row(ground, "links", "links", "links", LINKS, values(ground.current), values(ground.stored))
    field_rows(
        "Links", LINKS, [shown], key=ground.key("links"), stacked=True,
        on_edits=lambda edits: ground.take("links", edits, changed),
    )  # fmt: skip


def _columns(ground: Ground) -> tuple[Column, ...]:
    """The columns, with the types that there are: GPUs with MIG and without, and the hosts that the request has."""
    entries = (*ground.stored.gpus, *ground.current.gpus)
    types = dict.fromkeys([*catalogue(), *without_mig(), *(entry.type for entry in entries)])
    return (replace(COLUMNS[0], options=[(kind, kind) for kind in types]), *COLUMNS[1:])


def _values(entry: FleetEntry) -> dict[str, Any]:
    return {
        "type": entry.type, "count": entry.count, "mig": not left_whole(entry), "cost": entry.cost,
        "node": entry.node or "", "id": entry.id or "", "layouts": layouts_text(entry.layouts),
    }  # fmt: skip


def count_stops(entry: FleetEntry, was: FleetEntry | None) -> Sequence[tuple[float, str]]:
    """The counts that the slider of an entry offers."""
    base = was.count if was is not None else entry.count
    most = max(8, 2 * base, entry.count)
    steps = range(1, most + 1) if most <= MOST_STEPS else (round(base * factor) for factor in FACTORS)
    return [(count, exact(count)) for count in sorted({entry.count, base, *steps} - {0})]


def changed(stored: PlanRequest, request: PlanRequest, made: Edit) -> PlanRequest:
    """The request with one edit of its fleet; of a row that is not there any more, the request as it is."""
    gpus = edited(stored.gpus, request.gpus, made, _kind, lambda chosen: FleetEntry(chosen["type"]), _edited)
    if not gpus or gpus == request.gpus:
        return request
    return checked(replace(request, gpus=gpus), LABELS.get(made.field, "fleet"), request.models[:1])


def _kind(entry: FleetEntry) -> str:
    return entry.type


def _edited(entry: FleetEntry, was: FleetEntry | None, made: Edit) -> FleetEntry:
    """The entry with one field edited; what no longer fits goes, and comes back with the value as stored."""
    text = str(made.value).strip()
    if made.field == "type":
        layouts = was.layouts if was is not None and was.type == text else None
        return replace(entry, type=text, layouts=layouts)
    if made.field == "count":
        count = whole(made.value, "count")
        # An entry with an id of its own is one GPU; several get numbered ids, and back at one it has its own again.
        same = was is not None and (was.type, was.count) == (entry.type, count)
        identity = was.id if was is not None and same else entry.id if count == 1 else None
        return replace(entry, count=count, id=identity)
    if made.field == "mig":
        layouts = was.layouts if made.value and was is not None and was.type == entry.type else None
        return replace(entry, mig=bool(made.value), layouts=layouts)
    if made.field == "cost":
        return replace(entry, cost=number(made.value, "price"))
    if made.field == "layouts":
        return replace(entry, layouts=parse_layouts(text, "layouts"))
    return replace(entry, node=text or None) if made.field == "node" else replace(entry, id=text or None)
