"""The Graph page: how does the model flow, and where can it be cut?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import frame, graph_analysis, navigation, request_edit, scenario
from app.models_view import PROFILE_JOB
from app.numbers import exact, percent, plain, short, size
from app.plan_editor import plan_again
from app.workspace import names, read
from torchsplit_core import jobs
from torchsplit_core.graph import ENTRY, EXIT, TorchGraph, collapse
from torchsplit_core.planning.build_request import model_name
from torchsplit_core.storage import Workspace
from torchsplit_core.values import PartitionOutcome, Profile

PARTITION_JOB = "torchsplit_core.workflow:partition_job"


def show(workspace: Workspace) -> None:
    """The whole page for one traced model."""
    stored = sorted(names(workspace, "graph"))
    if not stored:
        st.write("Here you will see a model's dataflow, what dominates what, and where it can be cut.")
        navigation.link("Models", "Trace a model first")
        return
    head = st.container(horizontal=True, vertical_alignment="center")
    with head:
        name = st.selectbox("Model", stored, key="graph-model", width=320, label_visibility="collapsed")
    sha256 = next(item.sha256 for item in workspace.artifacts("graph") if item.name == name)
    profile = read(workspace, "profile", name)
    graph = graph_analysis.profiled(read(workspace, "graph", name), profile)
    analysis = graph_analysis.analyse(sha256, graph)
    with head:
        st.markdown(
            f"**{plain(name)}** · {short(len(graph.nodes))} nodes · {len(analysis.regions.cut_points)} cut points",
            width="content",
        )
        if profile is None:
            st.badge("not profiled", color="gray")
        elif any(row.basis == "measured" for row in profile.rows):
            st.badge("times measured on this machine", color="green")
        else:
            st.badge("times estimated", color="yellow")
    dark = st.context.theme.type == "dark"
    flow, dominance, cuts, nodes = st.tabs(["Dataflow", "Dominators", "Regions and cuts", "Nodes"])
    with flow:
        st.fragment(_flow)(graph, dark)
    with dominance:
        st.fragment(_dominance)(analysis, dark)
    with cuts:
        _cuts(workspace, name, graph, profile, analysis)
    with nodes:
        st.fragment(_nodes)(graph, analysis)
    _downloads(workspace, name, graph)


def _flow(graph: TorchGraph, dark: bool) -> None:
    deepest = max(graph_analysis.module_depth(graph) + 1, 1)
    fitting = _fitting_depth(graph, deepest)
    depth = st.slider("Module depth shown", 0, deepest, fitting, help="0: the whole model as one box.")
    drawn = collapse(graph, depth)
    st.caption(f"{len(drawn.nodes)} of {len(graph.nodes)} nodes drawn; weights are hidden.")
    if len(drawn.nodes) > graph_analysis.MOST_DRAWN:
        st.warning(
            f"{len(drawn.nodes)} nodes are more than a drawing shows well (up to {graph_analysis.MOST_DRAWN}): "
            f"choose depth {fitting} or less. The Nodes tab lists them all."
        )
        return
    with st.container(border=True, height=620):
        st.graphviz_chart(
            graph_analysis.drawing(graph, depth, dark),
            alt="Dataflow by modules; the Nodes tab lists the same nodes",
        )


def _fitting_depth(graph: TorchGraph, deepest: int) -> int:
    """The deepest view that still reads well."""
    best = 0
    for depth in range(deepest + 1):
        if len(collapse(graph, depth).nodes) > 40 and depth > 1:
            break
        best = depth
    return best


def _dominance(analysis: graph_analysis.Analysis, dark: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        post = st.radio("Tree", ["dominators", "post-dominators"], horizontal=True)
        backward = post == "post-dominators"
        start = EXIT if backward else ENTRY
        root = st.selectbox("Below", [start, *analysis.dominance.ids], width=420, key=f"root-{post}")
    text, left_out = graph_analysis.dominator_drawing(analysis.dominance, root, dark, post=backward)
    if left_out:
        st.caption(f"{left_out} values further down are not drawn: choose one of the last as the start.")
    with st.container(border=True, height=620):
        st.graphviz_chart(text, alt="Dominator tree; the Nodes tab lists each node's dominator")


def _cuts(
    workspace: Workspace,
    name: str,
    graph: TorchGraph,
    profile: Profile | None,
    analysis: graph_analysis.Analysis,
) -> None:
    left, right = st.columns([5, 8], gap="medium")
    with left:
        st.header("Regions", anchor=False)
        st.dataframe(
            graph_analysis.regions_table(graph, analysis.regions), hide_index=True,
        placeholder="n/a", height=420,
            alt="Regions with one value in and one value out",
            column_config={"time %": st.column_config.NumberColumn(format="%.2f")},
        )  # fmt: skip
    with right:
        st.header("Where to cut", anchor=False)
        if profile is None:
            st.write("A cut needs the time of every node: profile this model first.")
            if st.button("Profile this model", disabled=not name.startswith("sample:")):
                jobs.start(workspace, f"Profile {name}", PROFILE_JOB, {"source": name})
                st.rerun()
            return
        with st.container(horizontal=True, vertical_alignment="bottom"):
            stages = st.number_input("Parts at most", 2, 16, 2, width=140)
            link = st.number_input(
                "Link between slices, GB/s", 0.0, 2000.0, 12.0, width=200, help="0: transfers take no time."
            )
            if st.button("Find cuts", type="primary"):
                parameters = {"source": name, "stages": int(stages), "link_gb_per_s": link or None}
                jobs.start(workspace, f"Cut {name} in {int(stages)}", PARTITION_JOB, parameters)
                st.rerun()
        for found in sorted(item for item in names(workspace, "partition") if item.startswith(f"{name} in ")):
            _candidates(workspace, found, read(workspace, "partition", found), profile)


def _candidates(workspace: Workspace, found: str, outcome: PartitionOutcome, profile: Profile) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plain(found)}**", width="content")
            colour = "green" if outcome.status == "optimal" else "yellow"
            words = (
                "proven optimal"
                if outcome.status == "optimal"
                else f"{outcome.status}, gap {percent(outcome.gap)}"
            )
            st.badge(words, color=colour)
        if outcome.message:
            st.caption(plain(outcome.message))
        if not outcome.candidates:
            st.info("No cut was found: allow fewer parts.")
            return
        st.dataframe(
            candidates_table(outcome), hide_index=True, placeholder="n/a", alt="Candidates, best first"
        )
        with st.container(horizontal=True):
            if st.button("Offer these cuts to the planner", key=f"offer-{found}"):
                _offer(workspace, profile, outcome)
            st.download_button(
                "Cuts (JSON)", workspace.get_bytes("partition", found), f"{found.replace('/', '-')}.partition.json",
                "application/json", on_click="ignore", key=f"partition-{found}",
            )  # fmt: skip


def candidates_table(outcome: PartitionOutcome) -> pd.DataFrame:
    """One row a candidate: how the compute divides, what crosses, what it needs."""
    return pd.DataFrame(
        [
            {
                "parts": len(item.stages),
                "slowest part, ms": item.max_load_ms,
                "load share, %": " | ".join(
                    exact(round(100 * load / (sum(item.loads_ms) or 1), 1)) for load in item.loads_ms
                ),
                "crosses": " | ".join(size(count) for count in item.cut_bytes) or "nothing",
                "peak memory": " | ".join(size(count) for count in item.peak_memory_bytes),
                "basis": item.basis,
            }
            for item in outcome.candidates
        ]
    )


def _offer(workspace: Workspace, profile: Profile, outcome: PartitionOutcome) -> None:
    """The cuts become variants of the model in the current scenario, and it is planned again."""
    with frame.telling():
        scenario_name, request = scenario.name(workspace), scenario.request(workspace)
        if request is None or scenario_name is None:
            scenario_name = f"{model_name(profile)} with cuts"
            request = request_edit.new_request(
                [model_name(profile)], {model_name(profile): profile}, "A100-80GB", 1
            )
        request = request_edit.with_cuts(request, profile, outcome)
        plan_again(workspace, scenario_name, request, then="Plan")


def _nodes(graph: TorchGraph, analysis: graph_analysis.Analysis) -> None:
    table = graph_analysis.nodes_table(graph, analysis)
    text = st.text_input(
        "Search", placeholder="part of an id, operation, module or source line", key="node-search"
    )
    if text:
        columns = table[["id", "op", "module", "source"]].astype(str)
        table = table[
            columns.apply(lambda column: column.str.contains(text, case=False, regex=False)).any(axis=1)
        ]
        st.caption(f"{len(table)} found")
    st.dataframe(
        table, hide_index=True,
        placeholder="n/a", height=560, alt="Nodes of the graph",
        column_config={"time %": st.column_config.NumberColumn(format="%.3f")},
    )  # fmt: skip


def _downloads(workspace: Workspace, name: str, graph: TorchGraph) -> None:
    file = name.replace("/", "-")
    with st.container(horizontal=True):
        st.download_button(
            "Graph (JSON)",
            workspace.get_bytes("graph", name),
            f"{file}.graph.json",
            "application/json",
            on_click="ignore",
        )
        st.download_button(
            "Drawing (DOT)", lambda: graph_analysis.drawing(graph, graph_analysis.module_depth(graph) + 1, False),
            f"{file}.dot", "text/vnd.graphviz", on_click="ignore",
        )  # fmt: skip
