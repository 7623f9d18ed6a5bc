"""The GPUs of a scenario as rows: type, count, MIG, price and node, folded their ids and layouts; and the links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.components.field_rows import Column, Edit, Row, field_rows
from app.plans.inputs.draft_editor import DraftEditor, check
from app.plans.inputs.fields import FACTORS, build_row, edit_items, match_items, number, whole_number
from torchsplit_core.hardware import catalogue, without_mig
from torchsplit_core.pictures.numbers import exact
from torchsplit_core.planning.request.fleet import is_unpartitioned
from torchsplit_core.planning.request.fleet_text import format_layouts, parse_layouts
from torchsplit_core.values import FleetEntry, PlanRequest

MOST_STEPS = 64
"""Counts that a slider has one by one; for larger fleets it has multiples of the stored count."""
COLUMNS = (
    Column("type", "GPU type", "choice", "minmax(6rem, 8.2rem)", 4, empty="Add a type …"),
    Column("count", "count", width="3.2rem", slider=True),
    Column("mig", "MIG", "check", "1.8rem", help="Off: the GPU is left whole."),
    Column(
        "cost", "price", width="3.2rem", empty="none",
        help="Of each GPU an hour, in any currency. Empty: none given; the objective fewest GPUs counts it 1.",
    ),
    Column("node", "node", "text", "4rem", help="GPUs of one node share its link.", empty="own"),
)  # fmt: skip
MORE = (
    Column(
        "either", "the plan decides on MIG", "check", quarters=4,
        help="Whether MIG cuts the GPU, or an engine of an LLM has it whole, alone or in a group.",
    ),
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


def render(editor: DraftEditor) -> None:
    """The rows of the fleet, and one to add to it."""
    columns = _columns(editor)
    before, now = editor.stored.gpus, editor.current.gpus
    rows, last = [], len(now) == 1
    for place, match in enumerate(match_items(before, now, _kind)):
        was = None if match.stored is None else before[match.stored]
        if match.current is None:
            assert was is not None
            name = f"{exact(was.count)} × {was.type}"
            rows.append(Row(str(place), name, name=name, state="gone"))
            continue
        entry = now[match.current]
        rows.append(
            build_row(
                editor, "fleet", str(place), entry.type, (*columns, *MORE), _values(entry),
                _values(was) if was else None, stops={"count": count_stops(entry, was)},
                remove="" if last else f"Remove {entry.type}",
                locked=() if entry.type in catalogue() else ("mig", "layouts", "either"),
            )
        )  # fmt: skip
    rows.append(Row(str(len(rows)), "another GPU type", {"type": ""}, state="blank"))
    apply = partial(apply_edits, editor)
    field_rows("Fleet", columns, rows, key=editor.key("fleet"), more=MORE, on_edits=apply)


def apply_edits(editor: DraftEditor, edits: Sequence[Edit]) -> None:
    """Apply edits of the fleet to the draft."""
    editor.apply_edits("fleet", edits, partial(apply_edit, editor.stored))


def first_row(editor: DraftEditor) -> tuple[str, FleetEntry, FleetEntry | None]:
    """The draft's first entry: the id of its row, the entry, and the stored entry."""
    matches = match_items(editor.stored.gpus, editor.current.gpus, _kind)
    place, match = next((place, match) for place, match in enumerate(matches) if match.current == 0)
    stored = None if match.stored is None else editor.stored.gpus[match.stored]
    return str(place), editor.current.gpus[0], stored


def links(editor: DraftEditor) -> None:
    """The fields for the speed of links between the stages of a cut model."""

    def values(request: PlanRequest) -> dict[str, Any]:
        return {column.id: getattr(request, column.id) for column in LINKS}

    def apply_link_edit(request: PlanRequest, field_edit: Edit) -> PlanRequest:
        label = next(column.label for column in LINKS if column.id == field_edit.field)
        speed: dict[str, Any] = {field_edit.field: number(field_edit.value, label)}
        return check(replace(request, **speed), label, request.models[:1])

    shown = build_row(editor, "links", "links", "links", LINKS, values(editor.current), values(editor.stored))
    apply = partial(editor.apply_edits, "links", change=apply_link_edit)
    field_rows("Links", LINKS, [shown], key=editor.key("links"), stacked=True, on_edits=apply)


def _columns(editor: DraftEditor) -> tuple[Column, ...]:
    """The columns with the known types: GPUs with MIG and without, and the hosts of the request."""
    entries = (*editor.stored.gpus, *editor.current.gpus)
    types = dict.fromkeys([*catalogue(), *without_mig(), *(entry.type for entry in entries)])
    return (replace(COLUMNS[0], options=[(kind, kind) for kind in types]), *COLUMNS[1:])


def _values(entry: FleetEntry) -> dict[str, Any]:
    return {
        "type": entry.type, "count": entry.count, "mig": not is_unpartitioned(entry), "cost": entry.cost,
        "either": entry.mig == "either", "node": entry.node or "", "id": entry.id or "",
        "layouts": format_layouts(entry.layouts),
    }  # fmt: skip


def count_stops(entry: FleetEntry, was: FleetEntry | None) -> Sequence[tuple[float, str]]:
    """The stops of the slider of an entry."""
    base = was.count if was is not None else entry.count
    most = max(8, 2 * base, entry.count)
    steps = range(1, most + 1) if most <= MOST_STEPS else (round(base * factor) for factor in FACTORS)
    return [(count, exact(count)) for count in sorted({entry.count, base, *steps} - {0})]


def apply_edit(stored: PlanRequest, request: PlanRequest, field_edit: Edit) -> PlanRequest:
    """The request with one edit of its fleet; an edit of a row that is gone changes nothing."""

    def new(chosen: Mapping[str, str]) -> FleetEntry:
        return FleetEntry(chosen["type"])

    gpus = edit_items(stored.gpus, request.gpus, field_edit, _kind, new, _apply_field)
    if not gpus or gpus == request.gpus:
        return request
    return check(replace(request, gpus=gpus), LABELS.get(field_edit.field, "fleet"), request.models[:1])


def _kind(entry: FleetEntry) -> str:
    return entry.type


def _apply_field(entry: FleetEntry, was: FleetEntry | None, field_edit: Edit) -> FleetEntry:
    """The entry with one field edited; layouts that no longer fit are dropped, and return with the stored value."""
    text = str(field_edit.value).strip()
    if field_edit.field == "type":
        layouts = was.layouts if was is not None and was.type == text else None
        if text != entry.type and entry.cost_date is not None:
            # A price from a table is of its type.
            entry = replace(entry, cost=None, cost_date=None)
        if was is not None and was.type == text and was.cost_date is not None and entry.cost is None:
            entry = replace(entry, cost=was.cost, cost_date=was.cost_date)
        return replace(entry, type=text, layouts=layouts)
    if field_edit.field == "count":
        count = whole_number(field_edit.value, "count")
        # An entry with an id is one GPU: more of them get numbered ids, and the stored count has the stored id.
        same = was is not None and (was.type, was.count) == (entry.type, count)
        identity = was.id if was is not None and same else entry.id if count == 1 else None
        return replace(entry, count=count, id=identity)
    if field_edit.field == "mig":
        layouts = was.layouts if field_edit.value and was is not None and was.type == entry.type else None
        return replace(entry, mig=bool(field_edit.value), layouts=layouts)
    if field_edit.field == "either":
        return replace(entry, mig="either" if field_edit.value else True)
    if field_edit.field == "cost":
        return replace(entry, cost=number(field_edit.value, "price"), cost_date=None)
    if field_edit.field == "layouts":
        return replace(entry, layouts=parse_layouts(text, "layouts"))
    if field_edit.field == "node":
        return replace(entry, node=text or None)
    return replace(entry, id=text or None)
