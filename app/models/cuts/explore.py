"""The chosen cut drawn over the model, and "cut here?" for the value selected there."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from app.explorer import view_state as explorer_state
from app.explorer.mount import mount
from app.format.html import Fact, facts_html
from app.models.cuts.candidate_tables import OBJECTIVE_LABELS
from app.session import analysis, cuts
from app.session.cuts import USER_CUT, CutStudy
from app.session.model import GraphModel
from app.shell import frame
from torchsplit_core.partitioning import PartitionProvider
from torchsplit_core.partitioning.candidates import objective_value
from torchsplit_core.pictures.numbers import escape_markdown, memory_size, percent, short, size
from torchsplit_core.values import PartitionCandidate
from torchsplit_core.workspace.store import Workspace

MOST_POINTS = 400
"""Cut points offered in the list; the explorer has all."""


def render(workspace: Workspace, model: GraphModel, study: CutStudy, provider: PartitionProvider) -> None:
    """The explorer in the colours of the stages, and the panel beside it."""
    place = f"cuts of {model.name}"
    before = explorer_state.load_state(workspace, place, model.hierarchy)
    if not explorer_state.is_stored(workspace, place):
        explorer_state.save_state(workspace, place, replace(before, overlay="stage"))
    explorer_state.refocus(workspace, place, model.hierarchy)
    st.fragment(_explorer)(workspace, model, study, provider, place)


def _explorer(
    workspace: Workspace, model: GraphModel, study: CutStudy, provider: PartitionProvider, place: str
) -> None:
    state = explorer_state.load_state(workspace, place, model.hierarchy)
    scene = analysis.scene(model.sha256, state.opened, state.unfolded, model.hierarchy)
    if state.refusal:
        st.warning(state.refusal)
    left, right = st.columns([70, 30], gap="small")
    with left:
        mount(workspace, model, state, scene, key=f"cuts-{model.name}", panels=False, place=place)
    with right, st.container(border=True, key="own-cut"):
        _panel(workspace, model, study, provider, state.node)


def _panel(
    workspace: Workspace,
    model: GraphModel,
    study: CutStudy,
    provider: PartitionProvider,
    selected: str | None,
) -> None:
    st.header("Try your own cut", anchor=False)
    user_values = cuts.user_values(workspace, model.name, model.graph)
    points = provider.regions.cut_points[:MOST_POINTS]
    modules = {name: model.graph.by_id[name].module or "no module" for name in points}
    listed = st.selectbox(
        "Behind a cut point", points, None, key=f"cut-point {model.name}",
        placeholder="select a box in the picture, or choose here",
        format_func=lambda name: f"{name} · {modules[name]}",
    )  # fmt: skip
    value = listed or selected
    if value is None:
        st.caption("Its load, bytes and memory will stand here beside the best at once.")
    elif value not in user_values:
        _render_candidate(workspace, model, study, provider, user_values, value)
    if user_values:
        with frame.fault_boundary():
            st.html(facts_html(compare_with_best(cuts.user_candidate(provider, study, user_values), study)))
        st.write("Your cut: behind " + ", ".join(f"`{name}`" for name in user_values))
        with st.container(horizontal=True):
            for name in user_values:
                st.button(
                    f"Drop {escape_markdown(name)}", key=f"drop {name}", on_click=_save_user_cut,
                    args=(workspace, model.name, tuple(other for other in user_values if other != name)),
                )  # fmt: skip
    # The cuts are drawn by the whole page, not by this fragment alone.
    if tuple(user_values) != st.session_state.setdefault(f"own seen {model.name}", user_values):
        st.session_state[f"own seen {model.name}"] = user_values
        st.rerun(scope="app")


def _render_candidate(
    workspace: Workspace,
    model: GraphModel,
    study: CutStudy,
    provider: PartitionProvider,
    user_values: tuple[str, ...],
    value: str,
) -> None:
    """The figures of a cut behind the value, alone and with the user's other cuts, and buttons to keep it."""
    st.markdown(f"Behind `{value}`")
    for label, values in {"Keep this cut": (value,), "Add to your cut": (*user_values, value)}.items():
        if label == "Add to your cut" and not user_values:
            continue
        with frame.fault_boundary():
            candidate = cuts.user_candidate(provider, study, values)
            st.html(facts_html(compare_with_best(candidate, study)))
            st.button(
                label, key=f"{label} {value}", type="primary" if values == (value,) else "secondary",
                on_click=_save_user_cut, args=(workspace, model.name, values),
            )  # fmt: skip


def compare_with_best(candidate: PartitionCandidate, study: CutStudy) -> list[Fact]:
    """The figures of a cut, and the best cut with as many stages."""
    stages, value = len(candidate.stages), objective_value(candidate, study.objective)
    same = [other for other in study.candidates if len(other.stages) == stages] or list(study.candidates)
    facts: list[Fact] = [
        ("stages", str(stages)),
        ("stage loads, est.", " | ".join(short(load) for load in candidate.loads_ms) + " ms"),
        (f"{OBJECTIVE_LABELS[study.objective]}, est.", short(value, "ms")),
        ("across the cuts", " | ".join(size(count) for count in candidate.cut_bytes)),
        ("peak memory, est.", " | ".join(memory_size(count) for count in candidate.peak_memory_bytes)),
    ]
    if same:
        best = objective_value(same[0], study.objective)
        facts.append((f"best of {len(same[0].stages)} stages", short(best, "ms")))
        slower = "as good" if value <= best * (1 + 1e-9) else f"{percent(value / best - 1)} slower"
        facts.append(("yours is", slower))
    limit = study.devices.memory_bytes
    if limit and max(candidate.peak_memory_bytes) > limit:
        facts.append(("memory", f"above the limit of {memory_size(limit)}"))
    return facts


def _save_user_cut(workspace: Workspace, model: str, values: tuple[str, ...]) -> None:
    cuts.set_user_values(workspace, model, values)
    if values:
        cuts.choose(workspace, model, USER_CUT)
