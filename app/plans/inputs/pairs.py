"""Models that must share a GPU or prefer to, as rows: the two, how strictly, and what they send each other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from app.components.field_rows import ADD, Column, Edit, Row, field_rows
from app.plans.inputs.draft_editor import DraftEditor, check
from app.plans.inputs.fields import build_row, edit_items, match_items, number
from torchsplit_core.planning.request.colocation_index import member_names
from torchsplit_core.values import Colocation, ColocationMode, PlanRequest

MODES: tuple[tuple[ColocationMode, str], ...] = (
    ("hard", "must share a GPU"),
    ("routed", "prefer, by bytes"),
    ("soft", "prefer, by count"),
)
BETWEEN = (
    Column(
        "mode", "together", "choice", "8.6rem", 2, options=MODES,
        help="By bytes: fewest bytes a second between GPUs. By count: fewest GPUs where one stands without the other.",
    ),
    Column(
        "megabytes", "MB a request", width="4.6rem",
        help="Megabytes that a request sends between them when they are apart.",
    ),
)  # fmt: skip


def render(editor: DraftEditor) -> None:
    """A row for each pair, and one to add a pair. Groups of more than two models are named and cannot be split."""
    columns = _columns(editor)
    before, now = editor.stored.colocations, editor.current.colocations
    names = set(member_names(editor.current.models))
    rows, matches = [], match_items(before, now, _kind)
    for at, match in enumerate(matches):
        was = None if match.stored is None else before[match.stored]
        if match.current is None:
            # A pair that was removed with a model can be restored after it.
            if was is not None and names.issuperset(was.models):
                rows.append(Row(str(at), _about(was), name=_about(was), state="gone"))
            continue
        pair = now[match.current]
        rows.append(
            build_row(
                editor, "pairs", str(at), _about(pair), columns, _values(pair), _values(was) if was else None,
                name=_about(pair) if len(pair.models) > 2 else "", remove=f"Remove {_about(pair)}",
            )
        )  # fmt: skip
    if len(editor.current.models) > 1:
        place = str(len(matches))
        refused = editor.typed.get(("pairs", place, ADD))
        faults = {"second": refused.words} if refused else {}
        rows.append(Row(place, "another pair", {"first": "", "second": ""}, state="blank", faults=faults))
    apply = partial(editor.apply_edits, "pairs", change=partial(apply_edit, editor.stored))
    field_rows("Together on one GPU", columns, rows, key=editor.key("pairs"), on_edits=apply)


def apply_edit(stored: PlanRequest, request: PlanRequest, field_edit: Edit) -> PlanRequest:
    """The request with one edit of its pairs; an edit of a pair that is gone changes nothing."""
    pairs = edit_items(
        stored.colocations, request.colocations, field_edit, _kind,
        lambda chosen: Colocation((chosen["first"], chosen["second"])), _apply_field,
    )  # fmt: skip
    edited_request = replace(request, colocations=pairs)
    return check(edited_request, "together on one GPU", request.models, pairs=True)


def _columns(editor: DraftEditor) -> tuple[Column, ...]:
    used = [name for pair in editor.current.colocations for name in pair.models]
    names = [(name, name) for name in dict.fromkeys([*member_names(editor.current.models), *used])]
    about = "A model, or a stage of a cut one."
    first, second = (
        Column(id, id, "choice", "minmax(0, 1fr)", 2, options=names, help=about, empty=empty)
        for id, empty in (("first", "Add a pair …"), ("second", "and …"))
    )
    return (first, second, *BETWEEN)


def _kind(pair: Colocation) -> tuple[str, ...]:
    return pair.models


def _values(pair: Colocation) -> dict[str, Any]:
    names = dict(zip(("first", "second"), pair.models, strict=True)) if len(pair.models) == 2 else {}
    return {**names, "mode": pair.mode, "megabytes": pair.bytes_per_request / 1e6}


def _about(pair: Colocation) -> str:
    *names, last = pair.models
    return f"{', '.join(names)} and {last}"


def _apply_field(pair: Colocation, _was: Colocation | None, field_edit: Edit) -> Colocation:
    if field_edit.field == "megabytes":
        megabytes = number(field_edit.value, "MB a request", empty=0.0) or 0.0
        return replace(pair, bytes_per_request=megabytes * 1e6)
    if field_edit.field == "mode":
        mode: ColocationMode = next((known for known, _ in MODES if known == field_edit.value), "hard")
        return replace(pair, mode=mode)
    first, *rest = pair.models
    if field_edit.field == "first":
        return replace(pair, models=(str(field_edit.value), *rest))
    return replace(pair, models=(first, str(field_edit.value)))
