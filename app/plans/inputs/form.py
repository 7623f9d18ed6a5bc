"""The inputs of the Plan page: fleet, models, pairs and objective, which edit the scenario's draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from app.plans import missing_points
from app.plans.inputs import fleet, llms, models, objective, pairs, running_now
from app.plans.inputs.draft_editor import DraftEditor
from app.session import scenario
from app.session.draft import Draft, stored_profiles
from app.shell import frame
from app.shell.replan import plan_again
from torchsplit_core.hardware import sliced_types
from torchsplit_core.pictures.colours import model_colours
from torchsplit_core.pictures.numbers import counted, escape_markdown
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.coverage import uncovered_gpu_types
from torchsplit_core.values import PlanOutcome, PlanRequest, Profile
from torchsplit_core.workspace.store import Workspace

MOST_ROWS = 64
"""Models whose rows are shown at once; a search by name shows others."""
FEW_ROWS = 16
"""Models up to which there is no search."""


def render(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    draft: Draft | None,
    shown: PlanOutcome | None,
    planned: PlanOutcome | None,
) -> None:
    """The fields of the request, with the draft's changes marked; edits change the draft at once.

    `shown` is the plan on screen: what each model gets from it is beside its demand. `planned` is the stored one.
    """
    editor = DraftEditor.open(workspace, name, stored, draft)
    # One query of the store.
    known = stored_profiles(workspace)
    with st.container(border=True, key="inputs-fleet"):
        with st.container(horizontal=True, vertical_alignment="center", key="fleet-head"):
            st.header("Fleet", anchor=False)
            _render_missing_points(editor, known)
        fleet.render(editor)
        fleet.links(editor)
    with st.container(border=True, key="inputs-models"):
        st.header("Models", anchor=False)
        served = {model.name: model.throughput_rps for model in shown.models} if shown else {}
        models.render(editor, _filter_names(models.all_names(editor), name), served, _colours(editor))
        models.add(editor, edit.profiles_by_model(known))
        llms.add(editor)
    with st.container(border=True, key="inputs-pairs"):
        st.header("Together on one GPU", anchor=False)
        pairs.render(editor)
    with st.container(border=True, key="inputs-objective"):
        st.header("Objective", anchor=False)
        objective.render(editor)
    running_now.render(editor, planned)


def _render_missing_points(editor: DraftEditor, known: Sequence[Profile]) -> None:
    """The GPU types without figures, folded beside the heading, where they do not push the fields down."""
    own_profiles = edit.profiles_of(editor.current, known)
    # A plan would take further figures from the workspace; most requests need none.
    request = editor.current
    if uncovered_gpu_types(request):
        request = edit.with_points(request, own_profiles, ())
    if wanted := uncovered_gpu_types(request):
        label = f"No figures for {', '.join(gap.name for gap in wanted)}"
        with st.popover(escape_markdown(label), icon=":material/error:", key="figures-missing"):
            missing_points.render(editor.workspace, editor.name, editor.stored, request, own_profiles)


def _filter_names(names: Sequence[str], scenario_name: str) -> Sequence[str]:
    """Of many models those whose name contains the search text."""
    if len(names) <= FEW_ROWS:
        return names
    find = st.text_input("Find a model", key=f"find-model {scenario_name}", placeholder="part of its name")
    hits = [name for name in names if find.strip().casefold() in name.casefold()]
    if len(hits) > MOST_ROWS or not hits:
        more = f"The first {MOST_ROWS} of {counted(len(hits), 'model')}: type a part of a name to see others."
        st.caption(more if hits else "No model has a name like that.")
    return hits[:MOST_ROWS]


def _colours(editor: DraftEditor) -> Mapping[str, str]:
    """Colours as on the map, from the store only where a draft has new models."""
    colours = model_colours(model.name for model in editor.stored.models)
    if all(model.name in colours for model in editor.current.models):
        return colours
    return scenario.colours(editor.workspace)


def render_first_request(workspace: Workspace) -> None:
    """The form of a first request in a workspace with profiles: models and a fleet."""
    profiles = edit.profiles_by_model(stored_profiles(workspace))
    chosen = st.multiselect("Models to serve", list(profiles), list(profiles))
    left, right = st.columns(2)
    kinds = list(sliced_types())
    kind = left.selectbox("GPU type", kinds, kinds.index("A100-80GB"))
    count = right.number_input("How many", 1, 4096, 2)
    if st.button("Plan these models", type="primary"):
        with frame.fault_boundary():
            request = edit.new_request(chosen, profiles, str(kind), int(count))
            plan_again(workspace, "plan", request)
