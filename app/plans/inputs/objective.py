"""The objective and the means: everything in a request beside its fleet, models and pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.components.field_rows import Column, Edit, field_rows
from app.plans.inputs.draft_editor import DraftEditor, check
from app.plans.inputs.fields import build_row, number, whole_number
from app.plans.summary import OBJECTIVES, PLAN_AT, SHARINGS
from torchsplit_core.values import PlanRequest

COLUMNS = (
    Column("kind", "What is best", "choice", quarters=4, options=tuple(OBJECTIVES.items())),
    Column("sharing", "Slices", "choice", quarters=4, options=tuple(SHARINGS.items())),
    Column("time_limit_s", "Search at most, s", quarters=2),
    Column(
        "plan_at", "Plan at", "choice", quarters=2, options=tuple(PLAN_AT.items()),
        help="Low end: with the lower ends of the throughputs' 90 % intervals.",
    ),
)  # fmt: skip
MORE = (
    Column("max_tenants_per_slice", "Tenants of a slice, at most", quarters=4, empty="no limit"),
    Column(
        "memory_violation_penalty", "Penalty γ for each GiB too much", quarters=4, empty="memory is a limit"
    ),
    Column(
        "separation_weight", "Weight of a byte between models apart", quarters=4, help="0: separations break ties."
    ),
)  # fmt: skip
LABELS = {column.id: column.label for column in (*COLUMNS, *MORE)}


def render(editor: DraftEditor) -> None:
    """The fields of the objective."""
    shown = build_row(
        editor, "objective", "objective", "objective", (*COLUMNS, *MORE), _values(editor.current),
        _values(editor.stored),
    )  # fmt: skip
    field_rows(
        "Objective", COLUMNS, [shown], key=editor.key("objective"), more=MORE, fold="Tenants and penalties",
        stacked=True, on_edits=lambda edits: editor.apply_edits("objective", edits, apply_edit),
    )  # fmt: skip


def apply_edit(request: PlanRequest, field_edit: Edit) -> PlanRequest:
    """The request with one edit of its objective."""
    field, label = field_edit.field, LABELS.get(field_edit.field, field_edit.field)
    value: Any = str(field_edit.value)
    if field == "time_limit_s":
        value = number(field_edit.value, label, needed=True) or 0.0
    elif field == "max_tenants_per_slice":
        value = whole_number(field_edit.value, label) if value.strip() else None
    elif field == "memory_violation_penalty":
        value = number(field_edit.value, label)
    elif field == "separation_weight":
        value = number(field_edit.value, label, empty=0.0) or 0.0
    if field in ("kind", "memory_violation_penalty", "separation_weight"):
        edited = replace(request, objective=replace(request.objective, **{field: value}))
    elif field in ("time_limit_s", "plan_at"):
        edited = replace(request, solver=replace(request.solver, **{field: value}))
    else:
        edited = replace(request, **{field: value})
    # Whether an objective goes with tiers depends on all models.
    return check(edited, label, request.models if field == "kind" else request.models[:1])


def _values(request: PlanRequest) -> dict[str, Any]:
    return {
        "kind": request.objective.kind, "sharing": request.sharing, "time_limit_s": request.solver.time_limit_s,
        "plan_at": request.solver.plan_at, "max_tenants_per_slice": request.max_tenants_per_slice,
        "memory_violation_penalty": request.objective.memory_violation_penalty,
        "separation_weight": request.objective.separation_weight,
    }  # fmt: skip
