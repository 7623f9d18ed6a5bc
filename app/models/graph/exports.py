"""Files of a graph: the contract's JSON, DOT of the dataflow, dominance and regions, the drawing as SVG."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import streamlit as st

from app.components.saving import file_name
from app.explorer import view_state as explorer_state
from app.explorer.overlays import svg_fills
from app.session import analysis
from app.session.model import GraphModel
from app.shell import widgets
from torchsplit_core.drawing.scene import Scene
from torchsplit_core.drawing.scene_dot import scene_dot
from torchsplit_core.drawing.svg import render_svg
from torchsplit_core.graph.dot import dataflow_dot, dominance_dot, regions_dot
from torchsplit_core.workspace.store import Workspace


def render(workspace: Workspace, model: GraphModel) -> None:
    """A button for each file, which is made on demand."""
    file, dark = file_name(model.name), widgets.is_dark()
    state = explorer_state.load_state(workspace, model.name, model.hierarchy)

    def scene() -> Scene:
        return analysis.scene(model.sha256, state.opened, state.unfolded, model.hierarchy)

    def drawing() -> str:
        fills = svg_fills(model.hierarchy, scene().view)
        return render_svg(scene(), dark=dark, fills=fills, title=model.name)

    st.write("What is open in the explorer, with shares of the time where profiled:")
    with st.container(horizontal=True):
        st.download_button("Drawing (SVG)", drawing, f"{file}.svg", "image/svg+xml", on_click="ignore")
        dot = partial(_dot_button, file)
        dot("Drawing (DOT)", "drawing", lambda: scene_dot(model.hierarchy, scene()))
    st.write("The whole model:")
    with st.container(horizontal=True):
        data = partial(workspace.get_bytes, "graph", model.name)
        st.download_button("Graph (JSON)", data, f"{file}.graph.json", "application/json", on_click="ignore")
        dominance = model.analysis.dominance
        dot("Dataflow (DOT)", "dataflow", lambda: dataflow_dot(model.graph))
        dot("Dominators (DOT)", "dominators", lambda: dominance_dot(dominance))
        dot("Post-dominators (DOT)", "post-dominators", lambda: dominance_dot(dominance, post=True))
        dot("Regions (DOT)", "regions", lambda: regions_dot(model.analysis.regions))
    st.caption("A picture of the open view as PNG: the button in the explorer's toolbar.")


def _dot_button(file: str, label: str, name: str, make: Callable[[], str]) -> None:
    st.download_button(label, make, f"{file}.{name}.dot", "text/vnd.graphviz", on_click="ignore")
