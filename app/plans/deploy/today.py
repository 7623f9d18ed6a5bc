"""From today's state to the plan: both drawn, what stays, the steps, and what each model loses meanwhile."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import streamlit as st

from app.charts.change import ChangeLine, change_chart
from app.components import saving
from app.components.picture import picture
from app.plans.deploy import apply_form, gain_curve, state_choice
from app.plans.deploy.change_options import START_S, ChangeOptions, command
from app.session import scenario
from app.shell import widgets
from torchsplit_core.apply import plan_digest
from torchsplit_core.files import write_text
from torchsplit_core.pictures.colours import UNKNOWN
from torchsplit_core.pictures.numbers import THIN, counted, duration, escape_markdown, short
from torchsplit_core.pictures.slice_map import state_svg
from torchsplit_core.pictures.slice_values import Marks
from torchsplit_core.pictures.slices.drawing import STAYS
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.transition import (
    ChangeTimes,
    plan_transition,
    state_after,
    step_rows,
    throughput_over_time,
    transition_table,
)
from torchsplit_core.transition.rates import Timeline
from torchsplit_core.values import HostState, ModelDuring, PlanOutcome, PlanRequest, Transition
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

MOST_LINES = 8
"""Models in the chart."""
MOST_NAMES = 8
"""Renamed GPUs that are listed without unfolding."""
PREFER = {"gpus": "change the fewest GPUs", "loss": "lose the least"}
STEP_COLUMNS = ("step", "begins, s", "takes, s", "GPU", "action", "slice", "tenants")


def render(workspace: Workspace, name: str, plan: PlanOutcome, request: PlanRequest | None) -> None:
    """The whole section for a plan with slices."""
    with st.container(border=True, key="today"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.header("From today's state", anchor=False, width="content")
            widgets.badge("untested on hardware", "yellow")
        state = state_choice.render(workspace, name, plan, request)
        if state is None:
            st.write(
                "Say what runs on the GPUs now, and you will see which slices stay, which stop and which are made, in "
                "which order, and what each model loses meanwhile."
            )
            return
        answered = request if request is not None and named_results.plan_is_current(request, plan) else None
        options = _options(name)
        plan_sha256 = plan_digest(plan)
        outcome = _transition(
            plan.request_sha256 if answered is None else request_hash(answered), plan_sha256, _digest(state), options,
            plan, state, answered,
        )  # fmt: skip
        colours = scenario.colours(workspace)
        if outcome.status == "infeasible":
            st.error(escape_markdown(f"No way from this state to the plan: {outcome.message}."))
            if not options.evict and any(item.foreign for gpu in state.gpus for item in gpu.instances):
                st.caption("Slices of others stay unless you tick Evict others.")
            _draw("now", state, colours, None, name)
        else:
            _render_change(name, plan, answered, state, outcome, colours)
            _files(name, answered, state, outcome, options)
            if outcome.steps:
                apply_form.render(
                    workspace, name, plan_sha256, state, outcome, options,
                    has_request=answered is not None, has_gpus=state_choice.has_gpus(),
                )  # fmt: skip
        if answered is not None:
            gain_curve.render(workspace, name, plan, answered, state, outcome)


def _options(name: str) -> ChangeOptions:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        prefer = st.segmented_control(
            "Of ways that keep as much", list(PREFER), default="gpus", format_func=PREFER.__getitem__, required=True,
            key=f"today-prefer {name}", persist_state="session",
        )  # fmt: skip
        start_s = st.number_input(
            f"A start takes, in{THIN}s", 0.0, 36_000.0, START_S, 5.0, key=f"today-start {name}",
            persist_state="session", width=170,
            help="Until an instance serves: process start, load, warm-up. 20 is an assumption.",
        )  # fmt: skip
        evict = st.checkbox(
            "Evict others", key=f"today-evict {name}", persist_state="session",
            help="Stop what no plan of yours placed, where the plan needs its place. Unknown tenants count as others.",
        )  # fmt: skip
    return ChangeOptions(prefer or "gpus", evict, start_s)


def _digest(state: HostState) -> str:
    return hashlib.sha256(write_text(state).encode()).hexdigest()


@st.cache_resource(max_entries=16, show_spinner="Finding the way to the plan …")
def _transition(
    request_sha256: str,
    plan_sha256: str,
    state_sha256: str,
    options: ChangeOptions,
    _plan: PlanOutcome,
    _state: HostState,
    _request: PlanRequest | None,
) -> Transition:
    return plan_transition(
        _plan, _state, request=_request, prefer_loss=options.prefer == "loss", evict_foreign=options.evict,
        times=ChangeTimes(start_s=options.start_s),
    )  # fmt: skip


def _render_change(
    name: str,
    plan: PlanOutcome,
    request: PlanRequest | None,
    state: HostState,
    outcome: Transition,
    colours: Mapping[str, str],
) -> None:
    after = state_after(state, outcome)
    widgets.metric_cards(counts(state, outcome))
    if not outcome.steps:
        st.success("Nothing to do: the plan runs already.")
    _names(outcome)
    marks = map_marks(state, outcome)
    for column, (which, shown, marked) in zip(
        st.columns(2, gap="medium"), (("now", state, marks[0]), ("then", after, marks[1])), strict=True
    ):
        with column:
            _draw(which, shown, colours, marked, name)
    if not outcome.steps:
        return
    st.caption(
        "On the maps: = stays, − goes, + new, ~ the slice stays and another tenant comes or goes. Hover for the words."
    )
    st.subheader("What models get meanwhile", anchor=False)
    _losses(name, request, state, outcome, colours)
    st.subheader("Who stops, when, for how long", anchor=False)
    rows = [
        {
            key: float(cell) if key.endswith(", s") else cell
            for key, cell in zip(STEP_COLUMNS, row, strict=True)
        }
        for row in step_rows(outcome.steps)
    ]
    height = min(420, 38 + 35 * len(rows))
    saving.table(rows, f"{name}.steps", key="today-steps", alt="The steps of the change", height=height)
    spare = "" if outcome.spare_gpu is None else f" {outcome.spare_gpu} is free, and bridges meanwhile."
    proven = "No order loses less, proven." if outcome.exact_order else "The best order found."
    st.caption(
        escape_markdown(
            f"{proven}{spare} After each step the GPUs are in a legal state; the steps so far, undone last first, "
            "lead back."
        )
    )


def counts(state: HostState, outcome: Transition) -> list[tuple[str, str, str]]:
    """The cards: what stays and what is touched, with what is proven of it, and how long the change takes."""
    tenants = sum(len(item.planned_tenants) for gpu in state.gpus for item in gpu.instances)
    standing = sum(item.foreign is None for gpu in state.gpus for item in gpu.instances)
    bound = outcome.bound
    fewest = outcome.touched_gpus if bound is None else bound.touched_gpus
    touched = "proven: no way that keeps as much touches fewer"
    if fewest < outcome.touched_gpus:
        touched = f"{fewest} would do, and lose more"
    seconds = sum(step.seconds or 0.0 for step in outcome.steps)
    return [
        ("Untouched tenants", f"{outcome.untouched_tenants} of {tenants}", "proven: no way leaves more"),
        (
            "Kept instances",
            f"{outcome.kept_instances} of {standing}",
            "proven: of those ways none keeps more",
        ),
        ("Touched GPUs", f"{outcome.touched_gpus} of {len(state.gpus)}", touched),
        ("The change takes", duration(seconds), f"estimated · {counted(len(outcome.steps), 'step')}"),
    ]


def map_marks(state: HostState, outcome: Transition) -> tuple[Marks, Marks]:
    """The marks of slices on the map of now, and on that of the plan."""
    by_action: dict[str, set[tuple[str, str, int | None]]] = {}
    for step in outcome.steps:
        by_action.setdefault(step.action, set()).add((step.gpu, step.profile, step.start))
    now: dict[tuple[str, int], str] = {}
    then: dict[tuple[str, int], str] = {}
    for gpu in state.gpus:
        for item in gpu.instances:
            place = (gpu.id, item.profile, item.start)
            goes = place in by_action.get("destroy", ())
            word = "goes" if goes else "drain" if place in by_action.get("stop", ()) else STAYS
            now[gpu.id, item.start] = word
            if item.foreign is not None and not goes:
                then[gpu.id, item.start] = STAYS
    for mapped in outcome.mapping:
        for planned in mapped.instances:
            starts = (mapped.host_gpu, planned.profile, planned.start) in by_action.get("start", ())
            word = "new" if not planned.is_kept else "other model" if starts else STAYS
            then[mapped.host_gpu, planned.start] = word
    return now, then


def _draw(which: str, state: HostState, colours: Mapping[str, str], marks: Marks | None, name: str) -> None:
    st.subheader("Today" if which == "now" else "Planned", anchor=False)
    with saving.exportable(f"Slices {which}", f"{name}.{which}", key=f"today-{which}"):
        picture(state_svg(state, colours, marks), key=f"today-map-{which}")


def _names(outcome: Transition) -> None:
    """Which GPU becomes which of the plan, where the names differ."""
    renamed = [
        f"{mapped.plan_gpu} is {mapped.host_gpu}"
        for mapped in sorted(outcome.mapping, key=lambda mapped: (len(mapped.plan_gpu), mapped.plan_gpu))
        if mapped.plan_gpu != mapped.host_gpu
    ]
    if not renamed:
        return
    text = escape_markdown(f"GPUs of the plan on the host: {', '.join(renamed)}.")
    if len(renamed) <= MOST_NAMES:
        st.markdown(text)
    else:
        with st.expander(f"{len(renamed)} GPUs of the plan have another name on the host"):
            st.markdown(text)


def _losses(
    name: str,
    request: PlanRequest | None,
    state: HostState,
    outcome: Transition,
    colours: Mapping[str, str],
) -> None:
    worst_first = sorted(outcome.during, key=_loss, reverse=True)
    losers = [model for model in worst_first if _loss(model) > 0]
    st.markdown(f"**{escape_markdown(loss_sentence(worst_first))}**")
    if losers:
        lines = change_lines(losers[:MOST_LINES], throughput_over_time(state, outcome, request), colours)
        alt = "Throughput of each model below its demand during the change; the table below has the figures"
        drawn = change_chart(lines, dark=widgets.is_dark())
        widgets.chart(drawn, "Change", f"{name}.change", key="today-chart", alt=alt)
    more = f" Drawn are the {MOST_LINES} that lose most." if len(losers) > MOST_LINES else ""
    basis = "" if request is not None else " Demand: the lesser of a model's rates before and after."
    st.caption(
        f"Times of create and destroy are published, of drain and start assumed; queues are left out.{more}{basis}"
    )
    rows = [
        {"model": model.model, "below demand, s": model.model_seconds_below_demand, "demand, req/s": model.demand_rps,
         "before, req/s": model.before_rps, "lowest, req/s": model.lowest_throughput_rps,
         "after, req/s": model.after_rps}
        for model in worst_first
    ]  # fmt: skip
    height = min(330, 38 + 35 * len(rows))
    form = (
        {key: st.column_config.NumberColumn(format="%.4g") for key in rows[0] if key != "model"}
        if rows
        else {}
    )
    saving.table(
        rows,
        f"{name}.losses",
        key="today-losses",
        alt="What each model loses",
        height=height,
        column_config=form,
    )


def loss_sentence(worst_first: Sequence[ModelDuring]) -> str:
    """What the worst model gets at its lowest, and how many models are below their demand meanwhile."""
    losers = [model for model in worst_first if _loss(model) > 0]
    if not losers:
        return "No model falls below its demand at any time."
    worst = losers[0]
    verb = "is" if len(losers) == 1 else "are"
    others = f"{len(losers)} of {counted(len(worst_first), 'model')} {verb} below demand meanwhile"
    if worst.lowest_throughput_rps < worst.before_rps:
        lowest = f"down to {short(worst.lowest_throughput_rps, 'req/s')}"
    else:
        lowest = f"at {short(worst.lowest_throughput_rps, 'req/s')} as today"
    return (
        f"{worst.model} loses most: {lowest} of the {short(worst.demand_rps, 'req/s')} asked, "
        f"{short(_loss(worst))} model-seconds below demand (estimated). {others}."
    )


def _loss(model: ModelDuring) -> float:
    return model.model_seconds_below_demand or 0.0


def change_lines(
    models: Sequence[ModelDuring], times: Mapping[str, Timeline], colours: Mapping[str, str]
) -> list[ChangeLine]:
    """A line for each of the models that has a demand, without what lasts no time."""
    lines = []
    for model in models:
        if model.demand_rps:
            first, *later = times[model.model]
            seconds, rates = zip(first, *dict(later).items(), strict=True)
            shares = tuple(rate / model.demand_rps for rate in rates)
            lines.append(ChangeLine(model.model, colours.get(model.model, UNKNOWN), seconds, shares))
    return lines


def _files(
    name: str, request: PlanRequest | None, state: HostState, outcome: Transition, options: ChangeOptions
) -> None:
    with st.container(horizontal=True):
        widgets.json_button("Transition (JSON)", outcome, f"{name}.transition.json")
        table = "\n".join((*transition_table(outcome), ""))
        st.download_button(
            "Table to sign (text)", table, f"{name}.transition.txt", "text/plain", on_click="ignore"
        )
        widgets.json_button("State now (JSON)", state, f"{name}.now.json")
    st.caption("The same on the command line, with the plan's files from the foot of this page:")
    line = command("transition", name, options, has_request=request is not None)
    st.code(line, language=None, wrap_lines=True)
