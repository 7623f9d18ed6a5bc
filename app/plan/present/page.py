"""A plan on the whole window: the verdict, the figures and the map, before and after a change.

The address says what is shown: `models` have a slider, `at` is "before" or "after". What the sliders change is the
draft of the Plan page.
"""

from __future__ import annotations

from functools import partial

import streamlit as st

from app.components.picture import picture
from app.components.stage import stage
from app.plan import infeasible, scenario_bar
from app.plan.compare import marks_of
from app.plan.draft import bar as draft_bar
from app.plan.draft import trial as trials
from app.plan.draft.trial import trial
from app.plan.inputs.ground import Ground
from app.plan.present import sliders
from app.plan.present.figures import Side, figures_html, verdict_html
from app.plan.present.slides import MOST_SLIDERS, Slide, slides, with_sliders, written
from app.plan.present.style import STYLE
from app.plan.summary import basis_badge
from app.plan.verdict import verdict_of
from app.plan.what_if import proof
from app.session import draft as drafts
from app.session import scenario
from app.session.thing import SCENARIO
from app.session.workspace import read
from app.shell import address, bar, frame, navigation, widgets
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.pictures.slice_values import Marks
from torchsplit_core.planning.comparison.compare import Comparison, compare
from torchsplit_core.values import PlanOutcome
from torchsplit_core.workspace.store import Workspace

BEFORE: Side = "before"
AFTER: Side = "after"


def show() -> None:
    """The whole page, about the scenario of the address."""
    workspace = frame.opened_workspace()
    known = SCENARIO.known(workspace)
    missing = SCENARIO.asked_in_vain(known)
    title = missing or SCENARIO.current(workspace, known) or "Nothing to present"
    asked = {key: st.query_params.get(key) for key in (address.MODELS, address.AT)}
    address.settle(workspace, {SCENARIO.word: title if known or missing else None, **asked})
    frame.name_window("Present", title)
    frame.tell_trouble(workspace)
    st.html(STYLE)
    head = st.container(horizontal=True, vertical_alignment="center", key="present-head", gap="small")
    head.title(escape_markdown(title), anchor=False, width="stretch")
    if missing:
        with head:
            navigation.link("Overview", "Leave")
    name, _ = scenario_bar.opened(workspace)
    if name is None:
        st.write("A scenario is shown here, once there is one.")
        navigation.link("Models", "Choose models first")
        return
    request, plan = read(workspace, "plan_request", name), read(workspace, "plan", name)
    draft = drafts.of(workspace, name, request)
    tried = trial(workspace, name, draft, plan)
    pair = slides(workspace, name, request, plan, draft, tried)
    side: Side = BEFORE if len(pair) > 1 and asked[address.AT] == BEFORE else AFTER
    shown = pair[0 if side == BEFORE else -1]
    beside = pair[-1 if side == BEFORE else 0] if len(pair) > 1 else None
    with head:
        if shown.solved is not None and (basis := basis_badge(shown.solved, shown.request)) is not None:
            widgets.badge(basis.text, basis.colour)
        _head(workspace, name, side, alone=beside is None, drafted=draft is not None)
    change = _change(pair)
    _said(shown, beside, side, change)
    with st.container(key="present-map"):
        is_open = draft is not None and tried is not None and draft_bar.is_open(workspace, draft, tried)
        searching = is_open and draft is not None and proof.is_looked_for(workspace, name, draft.request)
        _map(workspace, name, shown, side, change, searching=searching)
    if request is not None:
        _strip(Ground.of(workspace, name, request, draft), shown.plan, plan, asked[address.MODELS])
    if is_open and draft is not None:
        draft_bar.search(st.container(key="present-search"), workspace, name, draft)
    drafts.save(workspace, name)
    trials.remember(workspace, name)


def _step(side: Side) -> None:
    """Whoever moves a slider wants to see what comes of it too: the draft, wherever the page stood."""
    st.query_params[address.AT] = side


def _head(workspace: Workspace, name: str, side: Side, *, alone: bool, drafted: bool) -> None:
    """Steps and ways out; each has a key, which `components.stage` presses."""
    if drafted:
        widgets.badge("draft, not kept", "blue")
        st.button("Discard", key="present-discard", on_click=drafts.discard, args=(workspace, name))
    if not alone:
        for way, label in ((BEFORE, "← Before"), (AFTER, "After →")):
            st.button(
                label, key=f"present-{way}", type="primary" if way == side else "secondary",
                help="Keys: ← and →, or Space", on_click=_step, args=(way,),
            )  # fmt: skip
    with st.container(width="content"):
        stage("" if alone else side)
    with st.container(width="content"):
        bar.copy_link(workspace)
    if st.button("Leave · Esc", key="present-leave"):
        navigation.go("Plan", name)


def _change(pair: tuple[Slide, ...]) -> Comparison | None:
    """What the second changes of the first; None where one of them is no plan, or there is no second."""
    solved = [slide.solved for slide in pair]
    if len(solved) < 2 or solved[0] is None or solved[1] is None:
        return None
    return compare(solved[0], solved[1])


def _said(shown: Slide, beside: Slide | None, side: Side, change: Comparison | None) -> None:
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
        parts.append(
            escape_markdown(
                f"{change.lines[0].rstrip('.')} (dashed on the map)" if change.lines else "no slice changes"
            )
        )
    # Of one plan too: the map does not move when a draft begins.
    with st.container(key="present-moved"):
        st.markdown(" · ".join(parts))


def _map(
    workspace: Workspace, name: str, shown: Slide, side: Side, change: Comparison | None, *, searching: bool
) -> None:
    plan = shown.solved
    if plan is None:
        with st.container(key="present-reasons"):
            if shown.plan is None:
                st.markdown("There are no slices to show. Move a slider, or go on with it on the Plan page.")
            elif shown.plan.status == "infeasible":
                infeasible.show(workspace, name, shown.request, shown.plan, searching=searching)
        return
    marks: Marks | None = None if change is None else marks_of(change)[0 if side == BEFORE else 1]
    demands = {model.name: model.demand_rps for model in shown.request.models} if shown.request else None
    drawn = fleet_svg(plan, scenario.colours(workspace), demands, marks, request=shown.request)
    picture(drawn, key="present-slices")


def _strip(ground: Ground, shown: PlanOutcome | None, stored: PlanOutcome | None, asked: str | None) -> None:
    """A slider for the GPUs of the first kind and for each model chosen; the choice."""
    chosen, unknown = with_sliders(asked, ground.current, stored)
    served = {model.name: model.throughput_rps for model in shown.models} if shown else {}
    moved = partial(_step, AFTER)
    with st.container(horizontal=True, vertical_alignment="center", key="present-strip"):
        with st.container(key="present-slider-gpus"):
            sliders.of_fleet(ground, moved)
        for place, model in enumerate(chosen):
            with st.container(key=f"present-slider-{place}"):
                sliders.demand_of(ground, model, served, moved)
        if unknown:
            st.caption(escape_markdown(f"The address names {', '.join(unknown)}: no such model is in this scenario."))
        with st.popover("Sliders", icon=":material/tune:"):
            _choice(ground, chosen)


def _choice(ground: Ground, chosen: tuple[str, ...]) -> None:
    key = f"present-models {ground.name}"
    # The address holds the choice: Back, a reload and a copied link show it.
    st.session_state[key] = list(chosen)

    def changed() -> None:
        st.query_params[address.MODELS] = written(st.session_state[key])

    st.multiselect(
        "Models with a slider of their demand",
        [model.name for model in ground.current.models],
        key=key,
        max_selections=MOST_SLIDERS,
        on_change=changed,
    )
