"""The draft that the inputs write into: edits are taken over one by one, and what makes no sense stays as typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import streamlit as st

from app.components.field_rows import REMOVE, Edit
from app.session import draft as drafts
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import InputFault, PlanModel, PlanRequest
from torchsplit_core.workspace.store import Workspace

Table = Literal["fleet", "links", "models", "more models", "pairs", "objective"]
Place = tuple[Table, str, str]
"""The table of a field, its row and its column."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A text that was typed and not taken over: `words` say why at the field, `fault` where it stands alone."""

    text: str
    words: str
    fault: str


@dataclass(frozen=True, slots=True)
class Ground:
    """The scenario whose draft the inputs write: `current` is the draft's request, or the `stored` one.

    `typed` has the texts that are not in the draft, by their fields.
    """

    workspace: Workspace
    name: str
    stored: PlanRequest
    current: PlanRequest
    typed: dict[Place, Typed]

    @classmethod
    def of(cls, workspace: Workspace, name: str, stored: PlanRequest, draft: drafts.Draft | None) -> Ground:
        """That of a scenario. A draft without a fault was changed by something else since: nothing typed is left."""
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

    def take(
        self, table: Table, edits: Sequence[Edit], change: Callable[[PlanRequest, Edit], PlanRequest]
    ) -> None:
        """Take the edits over, in the order they were made; the draft goes on without those that make no sense.

        `change` gives the request with one edit. It raises InputFault, `where` the field's label.
        """
        # Asked anew: another edit may have come since the fields were drawn.
        draft = drafts.of(self.workspace, self.name, self.stored)
        before = request = draft.request if draft else self.stored
        typed: dict[Place, Typed] = dict(st.session_state.get(_key(self.workspace, self.name), {}))
        if draft is None or not draft.fault:
            typed.clear()
        for made in edits:
            place = (table, made.row, made.field)
            try:
                request = change(request, made)
                typed.pop(place, None)
                if made.field == REMOVE:
                    typed = {at: one for at, one in typed.items() if at[:2] != place[:2]}
            except InputFault as fault:
                text = made.value if isinstance(made.value, str) else ""
                typed[place] = Typed(text, str(fault), str(fault.within(_about(table, made.row))))
        if request != before:
            self.write(request)
        st.session_state[_key(self.workspace, self.name)] = typed
        told = next(iter(typed.values())).fault if typed else ""
        drafts.tell_fault(self.workspace, self.name, self.stored, told)


def checked(
    request: PlanRequest, label: str, models: Sequence[PlanModel], *, pairs: bool = False
) -> PlanRequest:
    """The request itself. Raises InputFault, told of the field with this label, where it is wrong, its `models` as far
    as these and its pairs where asked for.

    Points are left out: figures are not edited here, and there are thousands of them.
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
