"""The graph of a model: how does the model flow, and where can it be cut?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from app.components import saving
from app.explorer import view_state as explorer_state
from app.explorer.mount import mount
from app.explorer.view_state import ExplorerState
from app.format.badges import Colour
from app.format.html import facts_html
from app.models.graph import compare as graph_compare
from app.models.graph import exports, preparation
from app.models.graph import tables as graph_tables
from app.models.graph.details import ProfileTimes, cut_facts, group_facts, node_facts, region_facts, times_of
from app.session import analysis
from app.session.model import GraphModel, open_model
from app.shell import frame, navigation
from torchsplit_core.drawing.scene import Scene
from torchsplit_core.drawing.view import ViewItem
from torchsplit_core.pictures.numbers import counted, escape_markdown, exact
from torchsplit_core.workspace.named_results import exists
from torchsplit_core.workspace.store import Workspace

TAB = "graph-tab"
"""The key of its views."""
TITLES = ("Explorer", "Tables", "Compare", "Export")
ROUTES: Mapping[str, tuple[str, Colour]] = {
    "read": ("read from the file, nothing executed", "gray"),
    "strict": ("traced strictly", "gray"),
    "draft": ("draft export: good under the assumptions that it notes", "yellow"),
}
"""The badges that say how a graph was traced."""
# The picture comes first: in a wide window the badges of the graph are in the row of the views.
STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding-bottom: .6rem; }
.stMain [data-testid="stTabs"] [role="tabpanel"] { padding-top: .5rem; }
.stMain [role="tabpanel"] > .stVerticalBlock { gap: .5rem; }
@media (min-width: 1200px) {
  .st-key-graph-head { flex: none; height: 2.5rem; padding-left: 22rem; margin-bottom: -3rem; row-gap: 0; z-index: 1;
    justify-content: flex-end; pointer-events: none; }
  .st-key-graph-head > * { pointer-events: auto; }
}
@media (min-width: 1400px) { /* and the views in the row of the tabs */
  .st-key-graph-head { margin-top: -3.45rem; padding-left: 33rem; }
  .stMain [role="tabpanel"] [data-testid="stTabs"] { margin-top: -3.47rem; }
  .stMain [role="tabpanel"] [role="tablist"] { margin-left: 12rem; }
}
</style>"""


def render(workspace: Workspace, name: str | None) -> None:
    """The whole tab for one traced model."""
    if name is None or not exists(workspace, "graph", name):
        st.write("Here you will see a model's dataflow, what dominates what, and where it can be cut.")
        navigation.link("Models", "Trace a model, or drop a file, first", icon=":material/arrow_forward:")
        return
    st.html(STYLE)
    head = st.container(horizontal=True, vertical_alignment="center", key="graph-head", gap="small")
    steps = preparation.active_steps(workspace, name)
    model = open_model(workspace, name, steps=steps)
    with head:
        nodes, cuts = len(model.graph.nodes), len(model.analysis.regions.cut_points)
        st.markdown(f"{exact(nodes)} nodes · {counted(cuts, 'cut point')}", width="content")
        st.badge(escape_markdown(model.basis_text), color=model.basis_colour)
        if model.graph.route in ROUTES:
            text, colour = ROUTES[model.graph.route]
            st.badge(text, color=colour)
        partial = preparation.describe_steps(steps)
        if partial is not None:
            st.badge(partial, color="yellow")
        if model.graph.notes:
            with st.popover(f"To know of this trace: {len(model.graph.notes)}"):
                for note in model.graph.notes:
                    st.caption(escape_markdown(note))
        if st.session_state.get(TAB, TITLES[0]) == TITLES[0]:
            preparation.switch()
    explorer_state.refocus(workspace, name, model.hierarchy)
    tabs = st.tabs(TITLES, key=TAB, on_change="rerun")
    for view in tabs:
        # Below the views, which would cover it where they are in the row of the tabs.
        if view.open and model.misfit:
            view.warning(escape_markdown(f"The profile under its name is left out. {model.misfit}"))
    parts = (_explore, st.fragment(_tables), graph_compare.render, exports.render)
    for view, render_part in zip(tabs, parts, strict=True):
        if view.open:
            with view:
                render_part(workspace, model)


def _explore(workspace: Workspace, model: GraphModel) -> None:
    preparation.render(workspace, model)
    st.fragment(_explorer)(workspace, model)


def _explorer(workspace: Workspace, model: GraphModel) -> None:
    state = explorer_state.load_state(workspace, model.name, model.hierarchy)
    scene = analysis.scene(model.sha256, state.opened, state.unfolded, model.hierarchy)
    if state.refusal:
        st.warning(state.refusal)
    left, right = st.columns([81, 19], gap="small")
    with left:
        mount(workspace, model, state, scene, key=f"explorer-{model.name}", panels=True)
    with right:
        _details(workspace, model, state, scene)


def _details(workspace: Workspace, model: GraphModel, state: ExplorerState, scene: Scene) -> None:
    """The facts of what is selected."""
    times = times_of(model.profile, model.graph.traced_batch, model.fleet)
    item = next((candidate for candidate in scene.view.items if candidate.id == state.item), None)
    if state.region is not None and state.region < len(model.analysis.regions.regions):
        with st.container(border=True, key="graph-details"):
            st.header("Region", anchor=False)
            st.html(facts_html(region_facts(model.graph, model.analysis, state.region, times)))
    elif state.node is not None and state.node in model.graph.by_id:
        _node(workspace, model, state, state.node, times)
    elif item is not None and item.kind in ("module", "run", "fold"):
        _group(workspace, model, item, times)
    else:
        with st.container(border=True, key="graph-details"):
            st.header("Nothing selected", anchor=False)
            st.write(
                "Click a box, a region or a row of the tree to see everything known of it. "
                "Double-click a module (or press Enter) to open it."
            )


def _node(
    workspace: Workspace, model: GraphModel, state: ExplorerState, name: str, times: ProfileTimes
) -> None:
    node = model.graph.by_id[name]
    with st.container(border=True, key="graph-details"):
        st.header(escape_markdown(name), anchor=False)
        st.html(facts_html(node_facts(model.graph, model.analysis, name, times)))
        if node.source or node.code:
            st.code("\n".join(filter(None, (node.source, node.code))), language=None, wrap_lines=True)
        with st.container(horizontal=True):
            for label, target in _dominator_targets(model, name).items():
                reveal = partial(_apply_action, workspace, model, {"kind": "reveal", "node": target})
                st.button(label, key=f"lead-{label}", help=escape_markdown(target), on_click=reveal)
    facts = cut_facts(model.graph, model.analysis, name, times, model.best_cut)
    if facts:
        with st.container(border=True, key="graph-cut"):
            st.header("Cut here?", anchor=False)
            st.html(facts_html(facts))


def _dominator_targets(model: GraphModel, name: str) -> dict[str, str]:
    """The dominators of a node by the labels of their buttons, where those are nodes."""
    unit = model.analysis.prepared.unit_of.get(name)
    if unit is None or unit not in model.analysis.regions.position:
        return {}
    targets = {
        "Dominator": model.analysis.dominance.immediate_dominator(unit),
        "Post-dominator": model.analysis.dominance.immediate_post_dominator(unit),
    }
    return {label: target for label, target in targets.items() if target in model.hierarchy.index}


def _group(workspace: Workspace, model: GraphModel, item: ViewItem, times: ProfileTimes) -> None:
    with st.container(border=True, key="graph-details"):
        st.header(escape_markdown(item.label), anchor=False)
        st.html(facts_html(group_facts(model.hierarchy, item, times)))
        if item.repeats > 1:
            unfold = partial(_apply_action, workspace, model, {"kind": "unfold", "item": item.id})
            st.button(f"Show all {item.repeats} blocks", on_click=unfold)


def _apply_action(workspace: Workspace, model: GraphModel, action: dict[str, Any]) -> None:
    current = explorer_state.load_state(workspace, model.name, model.hierarchy)
    scene = analysis.scene(model.sha256, current.opened, current.unfolded, model.hierarchy)
    changed = explorer_state.apply_action(current, model.hierarchy, scene.view, action)
    explorer_state.save_state(workspace, model.name, changed)


def _tables(workspace: Workspace, model: GraphModel) -> None:
    """The nodes or regions as a table; a node chosen here can be shown in the explorer."""
    kind = st.segmented_control(
        "Table", ["Nodes", "Regions"], default="Nodes", key="graph-table", label_visibility="collapsed"
    )
    look: dict[str, Any] = {"height": 560}
    look["column_config"] = {"time %": st.column_config.NumberColumn(format="%.3g")}
    if kind == "Regions":
        regions = graph_tables.regions_table(model.graph, model.analysis)
        alt = "Regions with one value in and one value out"
        saving.table(regions, f"{model.name}.regions", key="graph-regions", alt=alt, **look)
        return
    hint = "regular expression over id, operation, module and source line"
    pattern = st.text_input("Search", placeholder=hint, key="node-search")
    with frame.fault_boundary():
        matches, most = graph_tables.matching_nodes(model.graph, pattern), graph_tables.MOST_ROWS
        if pattern or len(matches) > most:
            more = f"; the first {most} are shown" if len(matches) > most else ""
            st.caption(f"{len(matches)} found{more}")
        nodes = graph_tables.nodes_table(model.graph, model.analysis, matches)
        look |= {"on_select": "rerun", "selection_mode": "single-row"}
        chosen = saving.table(
            nodes, f"{model.name}.nodes", key="node-table", alt="Nodes of the graph", **look
        )
        rows = chosen["selection"]["rows"]
        if rows and rows[0] < len(matches):
            node = matches[rows[0]].id
            if node in model.hierarchy.index:
                show = partial(_show_in_explorer, workspace, model, node)
                st.button(f"Show {escape_markdown(node)} in the explorer", type="primary", on_click=show)
                # The tabs are drawn by the whole page, not by this fragment alone.
                if st.session_state[TAB] == "Explorer":
                    st.rerun(scope="app")


def _show_in_explorer(workspace: Workspace, model: GraphModel, node: str) -> None:
    _apply_action(workspace, model, {"kind": "reveal", "node": node})
    st.session_state[TAB] = "Explorer"
