"""Store a request that a page changed under its scenario's name, and plan it."""

from __future__ import annotations

import streamlit as st

from app.session import cuts, scenario
from app.session.draft import stored_profiles
from app.session.workspace import read
from app.shell import frame, navigation
from torchsplit_core.latency_slo.incumbent import is_settled
from torchsplit_core.planning.request import edit
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore


def plan_again(
    workspace: Workspace,
    name: str,
    request: PlanRequest,
    *,
    base: PlanRequest | None = None,
    shown: PlanOutcome | None = None,
    then: str | None = None,
) -> None:
    """Store a request under the scenario's name, plan it, and show the page `then` (the present one by default).

    `shown` is its plan on screen: this stores it too, and searches only for what it leaves open. `base` is the request
    that the user edited: where another tab has stored another one since, that one moves to a new name. Raises
    InputFault, with nothing stored, where the request is wrong.
    """
    profiles = edit.profiles_of(request, stored_profiles(workspace))
    partitions = cuts.offers(workspace)
    request = edit.validated_request(edit.with_points(request, profiles, partitions))
    stored = read(workspace, "plan_request", name)
    if base is not None and stored not in (None, base, request):
        other = named_results.free_name(workspace, named_results.SCENARIO_KINDS, f"{name}, edited elsewhere")
        workspace.put("plan_request", other, stored)
        frame.notify(f"{name} was changed in another tab meanwhile: that state is kept as {other}.")
    # History can bring the former version back.
    VersionStore(workspace, name).save()
    workspace.put("plan_request", name, request)
    if shown is not None and shown.status != "timeout" and named_results.plan_is_current(request, shown):
        workspace.put("plan", name, shown)
        VersionStore(workspace, name).save("")
        if is_settled(request, shown):
            scenario.settle_plan(workspace, name)
        else:
            scenario.start_plan(workspace, name)
    else:
        scenario.start_plan(workspace, name)
    if then is not None:
        navigation.go(then)
    st.rerun()
