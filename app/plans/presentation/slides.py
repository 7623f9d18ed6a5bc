"""What is presented: the current plan, and the plan that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

import streamlit as st

from app.plans.draft import change_summary
from app.plans.draft.quick_plan import TrialPlan
from app.plans.summary import SOLVED
from app.session import draft as drafts
from app.session.draft import Draft
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore

MOST_SLIDERS = 8
"""Models with a slider at once; more would take room from the map."""
FIRST_SLIDERS = 3
"""Models with a slider if the address names none: those that the stored plan serves worst."""
NO_MODEL = "-"
"""The parameter of the address for no model at all."""


@dataclass(frozen=True, slots=True)
class Slide:
    """A request and its plan, with a title. `fault`: why there is no plan."""

    title: str
    request: PlanRequest | None
    plan: PlanOutcome | None
    fault: str = ""

    @property
    def solved(self) -> PlanOutcome | None:
        """Its plan, if that is solved."""
        return self.plan if self.plan is not None and self.plan.status in SOLVED else None


def slides(
    workspace: Workspace,
    name: str,
    request: PlanRequest | None,
    plan: PlanOutcome | None,
    draft: Draft | None,
    trial_plan: TrialPlan | None,
) -> tuple[Slide, ...]:
    """One slide, or before and after: the plan and the draft, else the last version that differs and the plan."""
    if draft is not None and trial_plan is not None and request is not None:
        changes = change_summary.describe_draft(draft.content.said, drafts.changes(draft, request))
        title = f"Draft: {changes or 'an edit that cannot be taken over'}"
        after = Slide(title, trial_plan.request, trial_plan.outcome, draft.fault or trial_plan.fault)
        return (Slide("The stored plan", request, plan), after) if plan is not None else (after,)
    now = Slide("The stored plan", request, plan)
    before = None if plan is None else _version_before(workspace, name, request, plan)
    return (now,) if before is None else (before, now)


def _version_before(
    workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome
) -> Slide | None:
    """The newest version with another request or other slices."""
    store = VersionStore(workspace, name)
    for version in store.list():
        state = _state(f"{workspace.id} {name} {version}", store, version.number) if version.status else None
        if state is None or state[1] is None or (state[0], state[1].gpus) == (request, plan.gpus):
            continue
        stamp = datetime.fromtimestamp(version.kept).strftime("%d %b %H:%M")
        return Slide(f"v{version.number} of {stamp}", *state)
    return None


@st.cache_resource(max_entries=64, show_spinner=False)
def _state(key: str, _store: VersionStore, _number: int) -> tuple[PlanRequest, PlanOutcome | None] | None:
    """The version that `key` names, read once: unpacking it at every step would take longer than all the rest."""
    return _store.load(_number)


def format_models(models: Sequence[str]) -> str:
    """Models for the address: their names with commas between."""
    # A name may contain a comma.
    return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in models) or NO_MODEL


def slider_models(
    parameter: str | None, request: PlanRequest, stored: PlanOutcome | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The models with a slider by the address, and the names in it that are no models of the request.

    By default those that the `stored` plan serves worst, which the draft does not change.
    """
    known = [model.name for model in request.models]
    if not parameter:
        rates = {model.name: model.normalised for model in stored.models} if stored else {}
        return tuple(sorted(known, key=lambda name: rates.get(name, 0.0))[:FIRST_SLIDERS]), ()
    names = [] if parameter == NO_MODEL else [unquote(name) for name in dict.fromkeys(parameter.split(","))]
    chosen = tuple(name for name in names if name in known)[:MOST_SLIDERS]
    return chosen, tuple(name for name in names if name not in known)
