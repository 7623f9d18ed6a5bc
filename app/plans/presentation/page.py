"""A plan on the whole window: the verdict, the figures and the map, before and after a change.

The address says what is shown: `models` have a slider, `at` is "before" or "after". The sliders change the draft of the
Plan page.
"""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.components.fullscreen import fullscreen_button
from app.components.picture import picture
from app.plans import infeasible, scenario_bar
from app.plans.compare import map_marks
from app.plans.draft import bar as draft_bar
from app.plans.draft import quick_plan as quick_plans
from app.plans.draft.quick_plan import plan_draft
from app.plans.inputs.draft_editor import DraftEditor
from app.plans.presentation import sliders
from app.plans.presentation.headline import Side, figures_html, verdict_html
from app.plans.presentation.slides import MOST_SLIDERS, Slide, format_models, slider_models, slides
from app.plans.presentation.style import STYLE
from app.plans.summary import basis_badge
from app.plans.verdict import verdict_of
from app.plans.what_if import proof
from app.session import draft as drafts
from app.session import scenario
from app.session.result_kind import SCENARIO
from app.session.workspace import read
from app.shell import address, bar, frame, navigation, widgets
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.pictures.slice_values import Marks
from torchsplit_core.planning.comparison.plan_comparison import PlanComparison, compare
from torchsplit_core.values import PlanOutcome
from torchsplit_core.workspace.store import Workspace

BEFORE: Side = "before"
AFTER: Side = "after"


def render() -> None:
    """The whole page, about the scenario of the address."""
    workspace = frame.opened_workspace()
    known = SCENARIO.names(workspace)
    missing = SCENARIO.unknown_in_address(known)
    title = missing or SCENARIO.current(workspace, known) or "Nothing to present"
    query = {key: st.query_params.get(key) for key in (address.MODELS, address.AT)}
    address.set_address(workspace, {SCENARIO.word: title if known or missing else None, **query})
    frame.set_window_title("Present", title)
    frame.render_store_trouble(workspace)
    st.html(STYLE)
    head = st.container(horizontal=True, vertical_alignment="center", key="present-head", gap="small")
    head.title(escape_markdown(title), anchor=False, width="stretch")
    if missing:
        with head:
            navigation.link("Overview", "Leave")
    name, _ = scenario_bar.open_scenario(workspace)
    if name is None:
        st.write("A scenario is shown here, once there is one.")
        navigation.link("Models", "Choose models first")
        return
    request, plan = read(workspace, "plan_request", name), read(workspace, "plan", name)
    draft = drafts.load_draft(workspace, name, request)
    trial_plan = plan_draft(workspace, name, draft, plan)
    pair = slides(workspace, name, request, plan, draft, trial_plan)
    side: Side = BEFORE if len(pair) > 1 and query[address.AT] == BEFORE else AFTER
    shown = pair[0 if side == BEFORE else -1]
    beside = pair[-1 if side == BEFORE else 0] if len(pair) > 1 else None
    with head:
        if shown.solved is not None and (basis := basis_badge(shown.solved, shown.request)) is not None:
            widgets.badge(basis.text, basis.colour)
        _head(workspace, name, side, alone=beside is None, drafted=draft is not None)
    change = _change(pair)
    _render_headline(shown, beside, side, change)
    with st.container(key="present-map"):
        is_open = False
        if draft is not None and trial_plan is not None:
            is_open = draft_bar.is_open(workspace, draft, trial_plan)
        searching = is_open and draft is not None and proof.is_running(workspace, name, draft.request)
        _map(workspace, name, shown, side, change, searching=searching)
    if request is not None:
        editor = DraftEditor.open(workspace, name, request, draft)
        _render_sliders(editor, shown.plan, plan, query[address.MODELS])
    if is_open and draft is not None:
        draft_bar.search(st.container(key="present-search"), workspace, name, draft)
    drafts.save(workspace, name)
    quick_plans.remember_plan(workspace, name)


def _step(side: Side) -> None:
    """Show this side; moving a slider shows the draft."""
    st.query_params[address.AT] = side


def _head(workspace: Workspace, name: str, side: Side, *, alone: bool, drafted: bool) -> None:
    """The buttons; `components.fullscreen` presses them by their keys."""
    if drafted:
        widgets.badge("draft, not kept", "blue")
        st.button("Discard", key="present-discard", on_click=drafts.discard, args=(workspace, name))
    if not alone:
        for target_side, label in ((BEFORE, "← Before"), (AFTER, "After →")):
            st.button(
                label, key=f"present-{target_side}", type="primary" if target_side == side else "secondary",
                help="Keys: ← and →, or Space", on_click=_step, args=(target_side,),
            )  # fmt: skip
    with st.container(width="content"):
        fullscreen_button("" if alone else side)
    with st.container(width="content"):
        bar.copy_link(workspace)
    if st.button("Leave · Esc", key="present-leave"):
        navigation.go("Plan", name)


def _change(pair: tuple[Slide, ...]) -> PlanComparison | None:
    """The changes from the first slide to the second; None without two plans."""
    solved = [slide.solved for slide in pair]
    if len(solved) < 2 or solved[0] is None or solved[1] is None:
        return None
    return compare(solved[0], solved[1])


def _render_headline(shown: Slide, beside: Slide | None, side: Side, change: PlanComparison | None) -> None:
    with st.container(key="present-said"):
        if shown.plan is None or shown.fault:
            st.html(verdict_html("amber", shown.fault or "Not planned yet: press Plan on the Plan page."))
        else:
            verdict = verdict_of(shown.request, shown.plan)
            st.html(verdict_html(verdict.level, verdict.sentence))
        st.html(figures_html(shown, beside, side))
    parts = [f"**{escape_markdown(shown.title)}**"]
    if beside is not None:
        title = beside.title[0].lower() + beside.title[1:]
        parts.append(f"{'then' if side == BEFORE else 'from'} {escape_markdown(title)}")
    if change is not None:
        lines = [f"{line.rstrip('.')} (dashed on the map)" for line in change.lines[:1]]
        parts.append(escape_markdown(lines[0] if lines else "no slice changes"))
    # Also for a single plan, so that the map does not move when a draft begins.
    with st.container(key="present-moved"):
        st.markdown(" · ".join(parts))


def _map(
    workspace: Workspace,
    name: str,
    shown: Slide,
    side: Side,
    change: PlanComparison | None,
    *,
    searching: bool,
) -> None:
    plan = shown.solved
    if plan is None:
        with st.container(key="present-reasons"):
            if shown.plan is None:
                st.markdown("There are no slices to show. Move a slider, or go on with it on the Plan page.")
            elif shown.plan.status == "infeasible":
                infeasible.render(workspace, name, shown.request, shown.plan, searching=searching)
        return
    marks: Marks | None = None if change is None else map_marks(change)[0 if side == BEFORE else 1]
    picture(fleet_svg(plan, scenario.colours(workspace), shown.request, marks), key="present-slices")


def _render_sliders(
    editor: DraftEditor, shown: PlanOutcome | None, stored: PlanOutcome | None, models_parameter: str | None
) -> None:
    """A slider for the GPUs of the first type and for each chosen model, and the choice of models."""
    chosen, unknown = slider_models(models_parameter, editor.current, stored)
    served = {model.name: model.throughput_rps for model in shown.models} if shown else {}
    moved = partial(_step, AFTER)
    with st.container(horizontal=True, vertical_alignment="center", key="present-strip"):
        with st.container(key="present-slider-gpus"):
            sliders.of_fleet(editor, moved)
        for place, model in enumerate(chosen):
            with st.container(key=f"present-slider-{place}"):
                sliders.demand_of(editor, model, served, moved)
        if unknown:
            text = f"The address names {', '.join(unknown)}: no such model is in this scenario."
            st.caption(escape_markdown(text))
        with st.popover("Sliders", icon=":material/tune:"):
            _choice(editor, chosen)


def _choice(editor: DraftEditor, chosen: tuple[str, ...]) -> None:
    key = f"present-models {editor.name}"
    # The choice is in the address, for Back, a reload and a copied link.
    st.session_state[key] = list(chosen)

    def changed() -> None:
        st.query_params[address.MODELS] = format_models(st.session_state[key])

    names, label = [model.name for model in editor.current.models], "Models with a slider of their demand"
    st.multiselect(label, names, key=key, max_selections=MOST_SLIDERS, on_change=changed)
