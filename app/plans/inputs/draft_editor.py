"""The draft that the inputs edit: valid edits are applied one by one, and an invalid value stays as typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import streamlit as st

from app.components.field_rows import REMOVE, RESTORE, Edit
from app.session import draft as drafts
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import InputFault, PlanModel, PlanRequest
from torchsplit_core.workspace.store import Workspace

Table = Literal["fleet", "links", "models", "more models", "more LLMs", "pairs", "objective"]
Place = tuple[Table, str, str]
"""The table of a field, its row and its column."""


@dataclass(frozen=True, slots=True)
class PendingInput:
    """A typed or chosen value that is invalid: `words` say why beside the field, `fault` says it elsewhere."""

    value: Any
    words: str
    fault: str


@dataclass(frozen=True, slots=True)
class DraftEditor:
    """The scenario whose draft the inputs edit: `current` is the draft's request, or the `stored` one.

    `typed` has the invalid values by field.
    """

    workspace: Workspace
    name: str
    stored: PlanRequest
    current: PlanRequest
    typed: dict[Place, PendingInput]

    @classmethod
    def open(
        cls, workspace: Workspace, name: str, stored: PlanRequest, draft: drafts.Draft | None
    ) -> DraftEditor:
        """The editor of a scenario. A draft without a fault has no invalid values, since it was changed elsewhere."""
        key = _key(workspace, name)
        typed = st.session_state.get(key, {}) if draft is not None and draft.fault else {}
        st.session_state[key] = typed
        return cls(workspace, name, stored, draft.request if draft else stored, typed)

    def key(self, table: Table) -> str:
        """The key of the component that shows a table of this scenario."""
        return f"fields {table} {self.workspace.id} {self.name}"

    def write(self, edited: PlanRequest) -> None:
        """Make it the draft."""
        drafts.change(self.workspace, self.name, self.stored, edited)

    def apply_edits(
        self, table: Table, edits: Sequence[Edit], change: Callable[[PlanRequest, Edit], PlanRequest]
    ) -> None:
        """Apply the edits to the draft in their order, without the invalid ones.

        `change` returns the request with one edit. It raises InputFault, `where` the field's label.
        """
        # Loaded again: another edit may have come since the fields were drawn.
        draft = drafts.load_draft(self.workspace, self.name, self.stored)
        before = request = draft.request if draft else self.stored
        typed: dict[Place, PendingInput] = dict(st.session_state.get(_key(self.workspace, self.name), {}))
        if draft is None or not draft.fault:
            typed.clear()
        for field_edit in edits:
            place = (table, field_edit.row, field_edit.field)
            try:
                request = change(request, field_edit)
                typed.pop(place, None)
                if field_edit.field == REMOVE:
                    # Removing a model removes its pairs.
                    also, entries = "pairs" if table == "models" else "", typed.items()
                    typed = {at: entry for at, entry in entries if at[:2] != place[:2] and at[0] != also}
            except InputFault as fault:
                message = str(fault.within(_about(table, field_edit.row)))
                if field_edit.field == RESTORE:
                    # There is no field that could show the fault.
                    st.toast(escape_markdown(message))
                else:
                    typed[place] = PendingInput(field_edit.value, str(fault), message)
        if request != before:
            self.write(request)
        st.session_state[_key(self.workspace, self.name)] = typed
        first = next(iter(typed.values())).fault if typed else ""
        drafts.set_fault(self.workspace, self.name, self.stored, first)


def check(
    request: PlanRequest, label: str, models: Sequence[PlanModel], *, pairs: bool = False
) -> PlanRequest:
    """The request itself. Raises InputFault, `where` the label of a field, if it is wrong: it checks these `models`
    alone, and the pairs if asked to.

    Points are left out: they are not edited here, and there are thousands of them.
    """
    light = replace(request, models=tuple(models), colocations=request.colocations if pairs else ())
    try:
        validate(edit.with_stages(light, lambda _model, _variant, stage: replace(stage, points=())))
    except InputFault as fault:
        raise InputFault(label, fault.problem, fault.remedy) from None
    return request


def _about(table: Table, row: str) -> str:
    return f"model {row}" if table == "models" else table


def _key(workspace: Workspace, name: str) -> str:
    return f"typed into the inputs {workspace.id} {name}"
