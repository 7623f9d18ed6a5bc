"""The explorer on a page: the component shows a scene, and what the user does changes the session's view state."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.components.explorer import explorer
from app.components.keys import component_key
from app.explorer import view_state as explorer_state
from app.explorer.data import drawn_nodes, nodes_data, regions_data, scene_data, trees_data
from app.explorer.overlays import overlays
from app.explorer.view_state import ExplorerState
from app.session.model import GraphModel
from torchsplit_core.drawing.scene import Scene
from torchsplit_core.workspace.store import Workspace


def mount(
    workspace: Workspace,
    model: GraphModel,
    shown_state: ExplorerState,
    scene: Scene,
    *,
    key: str,
    panels: bool,
    place: str = "",
) -> None:
    """Show a scene in the explorer component; what the user does changes the view state stored under `place`."""
    place, key = place or model.name, component_key(key)

    def state() -> Any:
        return st.session_state[key]

    def on_action() -> None:
        action = state().get("action")
        if isinstance(action, Mapping):
            current = explorer_state.load_state(workspace, place, model.hierarchy)
            changed = explorer_state.apply_action(current, model.hierarchy, scene.view, action)
            explorer_state.save_state(workspace, place, changed)

    def on_selection() -> None:
        selection, regions = state().get("selection"), len(model.analysis.regions.regions)
        chosen = selection if isinstance(selection, Mapping) else {}
        explorer_state.select(workspace, place, model.hierarchy, regions, chosen)

    def on_overlay() -> None:
        explorer_state.set_overlay(workspace, place, model.hierarchy, str(state().get("overlay") or "time"))

    version = _version(model, shown_state, panels)
    overlay = shown_state.overlay if shown_state.overlay != "time" or model.graph.metadata else "bytes"
    text = _text(version, model, scene, panels)
    data = {"version": version, "focus": shown_state.focus, "overlay": overlay, "text": text}
    explorer(data, key=key, on_action=on_action, on_selection=on_selection, on_overlay=on_overlay)


def _version(model: GraphModel, state: ExplorerState, panels: bool) -> str:
    """A text that differs whenever the drawing does; the selection is no part of it."""
    parts = (
        model.name, model.sha256, model.profile_sha256, model.analysis.prepared.steps, state.opened,
        state.unfolded, panels,
        frozenset(model.stages.items()), frozenset(model.devices.items()),
    )  # fmt: skip
    return f"{hash(parts):x}"


@st.cache_resource(max_entries=24, show_spinner=False)
def _text(version: str, _model: GraphModel, _scene: Scene, _panels: bool) -> str:
    """The drawing as JSON, made once for each version: every click sends it again, and the browser skips it."""
    return json.dumps(explorer_data(_model, _scene, panels=_panels))


def explorer_data(model: GraphModel, scene: Scene, *, panels: bool) -> dict[str, Any]:
    """Everything the component draws."""
    drawn = drawn_nodes(model.hierarchy, scene)
    sizes = ("time", "bytes") if model.graph.metadata else ("bytes",)
    shown = (model.hierarchy, scene.view, model.analysis)
    return {
        "model": f"{model.name} {model.sha256}",
        "steps": " ".join(model.analysis.prepared.steps),
        "name": re.sub(r"[^\w.@-]+", "-", model.name),
        "panels": panels,
        "overlays": overlays(*shown, model.basis, model.stages, model.devices),
        "scene": scene_data(scene),
        "nodes": nodes_data(model.hierarchy, model.analysis, scene, drawn),
        "icicles": [regions_data(model.hierarchy, model.analysis, drawn, by) for by in sizes],
        "trees": trees_data(model.hierarchy, model.analysis, drawn),
    }
