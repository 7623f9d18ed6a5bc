"""The explorer on a page: the component on a scene, and what the user does there kept as the session's look."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

from app import graph_state
from app.components.explorer import explorer
from app.explorer_data import kept_nodes, nodes_data, regions_data, scene_data, trees_data
from app.explorer_overlays import overlays
from app.graph_model import GraphModel
from app.graph_state import Look
from torchsplit_core.drawing.scene import Scene
from torchsplit_core.storage import Workspace


def mount(
    workspace: Workspace,
    model: GraphModel,
    look: Look,
    scene: Scene,
    *,
    key: str,
    panels: bool,
    place: str = "",
) -> None:
    """The explorer component on a scene; what the user does changes the look stored under `place`."""
    place = place or model.name

    def state() -> Any:
        return st.session_state[key]

    def on_action() -> None:
        action = state().get("action")
        if action:
            current = graph_state.look(workspace, place, model.hierarchy)
            changed = graph_state.acted(current, model.hierarchy, scene.view, action)
            graph_state.keep(workspace, place, changed)

    def on_selection() -> None:
        chosen = state().get("selection") or {}
        graph_state.select(workspace, place, model.hierarchy, chosen)

    def on_overlay() -> None:
        graph_state.overlay(workspace, place, model.hierarchy, str(state().get("overlay") or "time"))

    data = explorer_data(model, look, scene, panels=panels)
    explorer(data, key=key, on_action=on_action, on_selection=on_selection, on_overlay=on_overlay)


def explorer_data(model: GraphModel, look: Look, scene: Scene, *, panels: bool) -> dict[str, Any]:
    """Everything the component draws."""
    kept = kept_nodes(model.hierarchy, scene)
    by = "time" if model.graph.metadata else "bytes"
    return {
        "model": f"{model.name} {model.sha256}",
        "version": f"{hash((model.sha256, model.profile_sha256, look.opened, look.unfolded, model.stage_key))}",
        "focus": look.focus,
        "name": re.sub(r"[^\w.@-]+", "-", model.name),
        "panels": panels,
        "overlay": look.overlay if look.overlay != "time" or model.graph.metadata else "bytes",
        "overlays": overlays(
            model.hierarchy, scene.view, model.analysis, model.basis, model.stages, model.devices
        ),
        "scene": scene_data(scene),
        "nodes": nodes_data(model.hierarchy, model.analysis, scene, kept),
        "regions": regions_data(model.hierarchy, model.analysis, kept, by),
        "trees": trees_data(model.hierarchy, model.analysis, kept),
    }
