"""The explorer on a page: the component on a scene, and what the user does there kept as the session's look."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.components.explorer import explorer
from app.components.keys import component_key
from app.explorer import look as explorer_look
from app.explorer.data import kept_nodes, nodes_data, regions_data, scene_data, trees_data
from app.explorer.look import Look
from app.explorer.overlays import overlays
from app.session.model import GraphModel
from torchsplit_core.drawing.scene import Scene
from torchsplit_core.workspace.store import Workspace


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
    place, key = place or model.name, component_key(key)

    def state() -> Any:
        return st.session_state[key]

    def on_action() -> None:
        action = state().get("action")
        if isinstance(action, Mapping):
            current = explorer_look.look(workspace, place, model.hierarchy)
            changed = explorer_look.acted(current, model.hierarchy, scene.view, action)
            explorer_look.keep(workspace, place, changed)

    def on_selection() -> None:
        chosen = state().get("selection")
        regions = len(model.analysis.regions.regions)
        explorer_look.select(
            workspace, place, model.hierarchy, regions, chosen if isinstance(chosen, Mapping) else {}
        )

    def on_overlay() -> None:
        explorer_look.overlay(workspace, place, model.hierarchy, str(state().get("overlay") or "time"))

    version = _version(model, look, panels)
    # Without times, their colour has nothing to show.
    overlay = look.overlay if look.overlay != "time" or model.graph.metadata else "bytes"
    data = {
        "version": version,
        "focus": look.focus,
        "overlay": overlay,
        "text": _text(version, model, scene, panels),
    }
    explorer(data, key=key, on_action=on_action, on_selection=on_selection, on_overlay=on_overlay)


def _version(model: GraphModel, look: Look, panels: bool) -> str:
    """Differs where anything that is drawn differs; a selection does not."""
    parts = (
        model.name, model.sha256, model.profile_sha256, model.analysis.prepared.steps, look.opened,
        look.unfolded, panels,
        frozenset(model.stages.items()), frozenset(model.devices.items()),
    )  # fmt: skip
    return f"{hash(parts):x}"


@st.cache_resource(max_entries=24, show_spinner=False)
def _text(version: str, _model: GraphModel, _scene: Scene, _panels: bool) -> str:
    """The drawing as JSON text, made once a version: a click sends it again, and the browser passes over it."""
    return json.dumps(explorer_data(_model, _scene, panels=_panels))


def explorer_data(model: GraphModel, scene: Scene, *, panels: bool) -> dict[str, Any]:
    """Everything the component draws."""
    kept = kept_nodes(model.hierarchy, scene)
    sizes = ("time", "bytes") if model.graph.metadata else ("bytes",)
    return {
        "model": f"{model.name} {model.sha256}",
        "steps": " ".join(model.analysis.prepared.steps),
        "name": re.sub(r"[^\w.@-]+", "-", model.name),
        "panels": panels,
        "overlays": overlays(
            model.hierarchy, scene.view, model.analysis, model.basis, model.stages, model.devices
        ),
        "scene": scene_data(scene),
        "nodes": nodes_data(model.hierarchy, model.analysis, scene, kept),
        "icicles": [regions_data(model.hierarchy, model.analysis, kept, by) for by in sizes],
        "trees": trees_data(model.hierarchy, model.analysis, kept),
    }
