"""Two models, or two profiles of one model, side by side, and what differs in words and numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pandas as pd
import streamlit as st

from app.components import saving
from app.explorer import view_state as explorer_state
from app.explorer.mount import mount
from app.session import analysis
from app.session.model import GraphModel, open_model
from app.session.workspace import names, read
from torchsplit_core.graph.operations import operation_name
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace


def render(workspace: Workspace, model: GraphModel) -> None:
    """The choice of the other side; both sides in the same colours, and a table of their differences."""
    others = choices(workspace, model)
    if not others:
        st.write(
            "Here two models stand side by side, or two profiles of one model: trace a second model, "
            "or drop another profile of this one."
        )
        return
    kind, _, name = st.selectbox(
        "Compare with", others, format_func=lambda choice: choice[1], key="graph-compare", width=420
    )
    st.fragment(_render_pair)(workspace, model, kind, name)


def choices(workspace: Workspace, model: GraphModel) -> list[tuple[str, str, str]]:
    """(kind, text, name) of other models, and of other profiles with the same architecture."""
    others = [
        ("profile", f"this model, profile “{name}”", name)
        for name in sorted(names(workspace, "profile"))
        if name != model.name and _is_comparable(workspace, name, model)
    ]
    models = sorted(names(workspace, "graph"))
    return others + [("model", name, name) for name in models if name != model.name]


def _is_comparable(workspace: Workspace, name: str, model: GraphModel) -> bool:
    profile = read(workspace, "profile", name)
    return bool(profile.nodes) and profile.architecture_hash == model.graph.architecture_hash


def _render_pair(workspace: Workspace, model: GraphModel, kind: str, name: str) -> None:
    steps = model.analysis.prepared.steps
    other = (
        open_model(workspace, model.name, name, steps)
        if kind == "profile"
        else open_model(workspace, name, steps=steps)
    )
    columns = st.columns(2, gap="small")
    for column, side, place in zip(columns, (model, other), ("left", "right"), strict=True):
        with column:
            # Two profiles of one model share a view state; two models have one each.
            at = f"compare {model.name}" if kind == "profile" else f"compare {side.name}"
            st.header(escape_markdown(side.name if kind == "model" or side is model else name), anchor=False)
            st.caption(escape_markdown(side.basis_text))
            state = explorer_state.load_state(workspace, at, side.hierarchy)
            scene = analysis.scene(side.sha256, state.opened, state.unfolded, side.hierarchy)
            key = f"compare-{place}-{side.name}-{name}"
            mount(workspace, side, state, scene, key=key, panels=False, place=at)
    st.header("What differs", anchor=False)
    table = times_table(model, other) if kind == "profile" else operations_table(model, other)
    saving.table(table, f"{model.name}.differences", key="graph-differences", alt="Differences of the two")


def operations_table(left: GraphModel, right: GraphModel) -> pd.DataFrame:
    """The counts of each operation in both models, the largest difference first; "n/a" where a model lacks it."""
    counts = [Counter(operation_name(node) for node in model.graph.ops) for model in (left, right)]
    rows: list[dict[str, Any]] = [
        {
            "operation": name,
            left.name: counts[0].get(name),
            right.name: counts[1].get(name),
            "difference": counts[1][name] - counts[0][name],
        }
        for name in sorted(counts[0] | counts[1])
    ]
    rows.sort(key=lambda row: -abs(row["difference"]))
    return pd.DataFrame(rows)


def times_table(left: GraphModel, right: GraphModel) -> pd.DataFrame:
    """The shares of time of each module in both profiles, the largest difference first."""
    shares: list[dict[str, float]] = []
    for model in (left, right):
        module_shares: dict[str, float] = defaultdict(float)
        for node in model.graph.ops:
            if node.id in model.graph.metadata:
                module_shares[node.module or "the model itself"] += model.graph.metadata[node.id].time_share
        shares.append(module_shares)
    rows: list[dict[str, Any]] = [
        {
            "module": module,
            "time %, left": 100 * shares[0][module],
            "time %, right": 100 * shares[1][module],
            "difference": 100 * (shares[1][module] - shares[0][module]),
        }
        for module in sorted(shares[0].keys() | shares[1].keys())
    ]
    rows.sort(key=lambda row: -abs(row["difference"]))
    return pd.DataFrame(rows)
