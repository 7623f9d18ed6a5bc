"""A plan by hand: layout and models on the map or in a table, checked with every edit, beside the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from app.components import saving
from app.components.picture import picture
from app.plans.compare import map_marks
from app.plans.manual import edit_state as manual_state
from app.plans.manual import slice_editor
from app.plans.model_table import models_table
from app.plans.summary import SOLVED, describe_metrics
from app.plans.verdict import verdict_of
from app.plans.verdict_line import render_verdict
from app.session import draft as drafts
from app.session import scenario
from app.shell import frame, widgets
from torchsplit_core.hardware import gpu_type
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.planning.baselines.gain import gain
from torchsplit_core.planning.comparison.plan_comparison import compare
from torchsplit_core.planning.manual import evaluate as evaluation
from torchsplit_core.planning.manual.evaluate import ManualGpu, ManualOutcome, ManualSlice, ManualTenant
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import WHOLE_GPU, PlanOutcome, PlanRequest, profile_words
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

COLUMNS = ("GPU", "slice", "start", "model", "stage", "batch", "share")
MOST_FAULTS = 8
Column = st.column_config
# The editor of the chosen place stays in sight below a long map. Only on this tab: `:has` slows the others.
STYLE = """<style>[data-testid="stLayoutWrapper"]:has(> .st-key-hand) {
  position: sticky; bottom: 0; z-index: 5; background: var(--ground);
  border-top: 1px solid light-dark(#dcdedb, #2b343d); box-shadow: 0 -10px 14px -8px rgb(0 0 0 / .28); }</style>"""


def render(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """The tab: the map and its editor, the table, and the result."""
    solved = request is not None and plan is not None and plan.status in SOLVED
    if request is None or plan is None or not solved or not named_results.plan_is_current(request, plan):
        st.write(
            "Here you place slices and models yourself, and see at once whether the GPU allows it and what it "
            "gives beside the best plan: plan first, its layout is where you start."
        )
        return
    st.html(STYLE)
    st.fragment(_editor)(workspace, name, request, plan)


def _editor(workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome) -> None:
    key = f"by hand {workspace.id} {name} {request_hash(request)[:12]}"
    start = evaluation.from_plan(plan)
    draft = manual_state.load(key, start)
    fleet = list_gpus(request.gpus)
    # The table is below the map, which shows its edits.
    map_, place, table = st.container(), st.container(key="hand"), st.expander("The same as a table, to edit")
    with table:
        edited = _table(request, draft.base, f"{key} {draft.turn}")
    with frame.fault_boundary():
        now = draft.base if edited is None else gpus_of(edited)
        draft = replace(draft, now=now)
        manual_state.save(key, draft)
        evaluated = evaluation.evaluate(request, now, plan)
        with map_:
            _verdict(workspace, name, request, plan, evaluated)
            marks = map_marks(compare(plan, evaluated.outcome))[1] if evaluated.outcome else None
            with saving.exportable("Slices", f"{name}.by-hand", key="by-hand"):
                picture(
                    fleet_svg(
                        manual_state.preview(now, fleet, plan, evaluated.outcome), scenario.colours(workspace),
                        request, marks, places=True,
                    ),
                    key="by-hand-slices", chosen=draft.place,
                    on_place=lambda chosen: manual_state.choose(key, start, chosen),
                )  # fmt: skip
    with place:
        slice_editor.render(key, request, fleet, draft)
        with st.container(horizontal=True):
            st.button(
                "Undo", key="by-hand-undo", disabled=len(draft.steps) == 1 and now == draft.base,
                on_click=lambda: manual_state.save(key, draft.undone()),
            )  # fmt: skip
            st.button(
                "Start again from the plan", key="by-hand-again", disabled=now == start,
                on_click=lambda: manual_state.save(key, draft.moved(start, draft.place)),
            )  # fmt: skip
    if evaluated.outcome is not None:
        shown = models_table(evaluated.outcome, request, scenario.colours(workspace), pick=True)
        saving.exportable_table(shown, "What each model gets", f"{name}.by-hand", key="by-hand-models")


def _table(request: PlanRequest, base: Sequence[ManualGpu], key: str) -> pd.DataFrame | None:
    """The table as edited; None without an edit."""
    gpus = list_gpus(request.gpus)
    kinds = [(gpu, gpu_type(gpu.type)) for gpu in gpus]
    cuts = [profile for gpu, kind in kinds for profile in ((kind.whole,) if gpu.whole else kind.profiles)]
    profiles = list(dict.fromkeys(profile_words(profile.name) for profile in cuts if profile))
    variants = [variant for model in request.models for _, variant in model.allowed_variants]
    stages = dict.fromkeys(["whole", *(stage.name for variant in variants for stage in variant.stages)])
    st.caption(
        "One row is one model on one slice; a slice without a model is free. Leave stage, batch and share empty to "
        "have the best chosen."
    )
    rows = rows_of(base)
    edited = st.data_editor(
        rows, num_rows="dynamic", hide_index=True, key=key, height=380,
        alt="Slices and the models on them",
        column_config={
            "GPU": Column.SelectboxColumn("GPU", options=[gpu.id for gpu in gpus], required=True),
            "slice": Column.SelectboxColumn("slice", options=profiles, required=True),
            "start": Column.NumberColumn("start", min_value=0, step=1, required=True, help="Its first memory slot."),
            "model": Column.SelectboxColumn("model", options=[model.name for model in request.models]),
            "stage": Column.SelectboxColumn("stage", options=list(stages)),
            "batch": Column.NumberColumn("batch", min_value=1, step=1),
            "share": Column.NumberColumn("share", min_value=0.0, max_value=1.0, format="%.3g"),
        },
    )  # fmt: skip
    return None if edited.equals(rows) else edited


def rows_of(gpus: Sequence[ManualGpu]) -> pd.DataFrame:
    """A row for each tenant and each free slice."""
    rows = [
        (gpu.id, profile_words(item.profile), item.start, *_cells(tenant))
        for gpu in gpus
        for item in gpu.slices
        for tenant in (item.tenants or (None,))
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"batch": "Int64", "start": "Int64"})


def _cells(tenant: ManualTenant | None) -> tuple[Any, ...]:
    if tenant is None:
        return None, None, None, None
    return tenant.model, tenant.stage, tenant.batch_size, None if tenant.share == 1 else tenant.share


def gpus_of(table: pd.DataFrame) -> tuple[ManualGpu, ...]:
    """The GPUs that a table's rows describe; rows without a place are left out until they have one."""
    slices: dict[str, dict[tuple[str, int], list[ManualTenant]]] = {}
    for row in table.to_dict("records"):
        if any(pd.isna(row[key]) for key in ("GPU", "slice", "start")):
            continue
        profile = WHOLE_GPU if row["slice"] == profile_words(WHOLE_GPU) else str(row["slice"])
        place = (profile, int(row["start"]))
        tenants = slices.setdefault(str(row["GPU"]), {}).setdefault(place, [])
        if not pd.isna(row["model"]):
            filled = {key: row[key] for key in ("stage", "batch", "share") if not pd.isna(row[key])}
            stage = str(filled["stage"]) if "stage" in filled else None
            batch = int(filled["batch"]) if "batch" in filled else None
            share = float(filled["share"]) if "share" in filled else None
            tenants.append(ManualTenant(str(row["model"]), stage=stage, batch_size=batch, share=share))
    return tuple(
        ManualGpu(gpu, tuple(ManualSlice(*place, tuple(tenants)) for place, tenants in by_place.items()))
        for gpu, by_place in slices.items()
    )


def _verdict(
    workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome, evaluated: ManualOutcome
) -> None:
    """Every fault of the plan, or how it compares with the best plan."""
    for fault in evaluated.faults[:MOST_FAULTS]:
        st.error(escape_markdown(str(fault)))
    if len(evaluated.faults) > MOST_FAULTS:
        st.caption(f"and {len(evaluated.faults) - MOST_FAULTS} more")
    for note in evaluated.notes:
        st.caption(escape_markdown(note))
    if evaluated.outcome is None:
        return
    render_verdict(verdict_of(request, evaluated.outcome))
    words = gain(plan, evaluated.outcome, request.objective).description
    with st.container(horizontal=True, vertical_alignment="center"):
        widgets.badge("legal, checked", "green")
        st.markdown(escape_markdown(f"The best plan against yours: {words}."), width="stretch")
        if st.button("Open as draft", key="by-hand-draft", disabled=evaluated.outcome.gpus == plan.gpus):
            drafts.change(workspace, name, request, request, plan=evaluated.outcome, origin="a plan by hand")
            st.rerun(scope="app")
        if st.button("Keep as a scenario", key="by-hand-keep"):
            new = scenario.store_new(workspace, f"{name} by hand", request, evaluated.outcome)
            frame.notify(f"Stored as {new}.")
            st.rerun(scope="app")
    st.caption(describe_metrics(evaluated.outcome, request))
