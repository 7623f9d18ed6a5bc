"""What is best, and with which means: all that a request says beside its fleet, its models and its pairs."""

from __future__ import annotations

from collections.abc import Callable
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
        "Objective", COLUMNS, [shown], key=editor.key("objective"), more=MORE,
        fold="Tenants and "
             "penalties", stacked=True, on_edits=lambda edits: editor.apply_edits("objective", edits, apply_edit),
    )  # fmt: skip


def apply_edit(request: PlanRequest, field_edit: Edit) -> PlanRequest:
    """The request with one edit of its objective."""
    label, goal, solver = LABELS.get(field_edit.field, field_edit.field), request.objective, request.solver
    text = str(field_edit.value)
    edits: dict[str, Callable[[], dict[str, Any]]] = {
        "kind": lambda: {"objective": replace(goal, kind=text)},  # type: ignore[arg-type]
        "sharing": lambda: {"sharing": text},
        "time_limit_s": lambda: {
            "solver": replace(solver, time_limit_s=number(field_edit.value, label, needed=True) or 0.0)
        },
        "plan_at": lambda: {"solver": replace(solver, plan_at=text)},  # type: ignore[arg-type]
        "max_tenants_per_slice": lambda: {
            "max_tenants_per_slice": whole_number(field_edit.value, label) if text.strip() else None
        },
        "memory_violation_penalty": lambda: {
            "objective": replace(goal, memory_violation_penalty=number(field_edit.value, label))
        },
        "separation_weight": lambda: {
            "objective": replace(goal, separation_weight=number(field_edit.value, label, empty=0.0) or 0.0)
        },
    }
    # Whether an objective goes with tiers hangs on all models.
    models = request.models if field_edit.field == "kind" else request.models[:1]
    return check(replace(request, **edits[field_edit.field]()), label, models)


def _values(request: PlanRequest) -> dict[str, Any]:
    return {
        "kind": request.objective.kind, "sharing": request.sharing, "time_limit_s": request.solver.time_limit_s,
        "plan_at": request.solver.plan_at, "max_tenants_per_slice": request.max_tenants_per_slice,
        "memory_violation_penalty": request.objective.memory_violation_penalty,
        "separation_weight": request.objective.separation_weight,
    }  # fmt: skip
