"""The tab Run it: start the plan here, watch it under load, compare measured with simulated and planned figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app.charts.load_run import LoadSeries, load_chart
from app.components import saving
from app.plans.measurement import sources as run_sources
from app.plans.measurement.sources import Sources
from app.plans.summary import SOLVED
from app.session import scenario
from app.session.workspace import read
from app.shell import frame, widgets
from app.shell.replan import plan_again
from torchsplit_core import jobs, workflow
from torchsplit_core.jobs.job_kinds import MEASURE, RUN_HERE, MeasureParameters
from torchsplit_core.jobs.live_runs import LiveRunFile
from torchsplit_core.latency_slo.frontend import uses_cpu_slices
from torchsplit_core.pictures.numbers import THIN, escape_markdown, exact, short
from torchsplit_core.serving.device_binding import bind_slices
from torchsplit_core.serving.load_test.comparison import RATE_BAND
from torchsplit_core.serving.load_test.measurement import front_warning
from torchsplit_core.serving.load_test.update_points import replace_points
from torchsplit_core.serving.plan import plan_serving
from torchsplit_core.values import InputFault, PlanModel, PlanOutcome, PlanRequest, TokenFigure
from torchsplit_core.values.serving.measurement import MeasuredModel, Measurement
from torchsplit_core.workspace.store import Workspace

REFRESH_S = 1.0
WHAT = (
    "Here you will see this plan served on this machine under load: rates, response times and queues as they come, "
    "and at the end what was predicted, simulated and measured."
)


def render(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """The whole tab of the stored scenario."""
    if plan is None and jobs.running(workspace, (RUN_HERE,)):
        st.info(f"{WHAT} The models are measured and planned first; this goes on by itself.")
        return
    if plan is None or request is None or plan.status not in SOLVED:
        st.info(f"{WHAT} It needs a plan and its request: press Plan first.")
        return
    working = bool(jobs.running(workspace, (MEASURE, RUN_HERE), name))
    with st.container(border=True, key="run-ask"):
        _ask(workspace, name, request, plan, working)
    if working:
        # During the run only this fragment is drawn again.
        st.fragment(_live, run_every=REFRESH_S)(workspace, name)
        return
    measurement: Measurement | None = read(workspace, "measurement", name)
    if measurement is None:
        st.info(WHAT)
    else:
        _outcome(workspace, name, request, plan, measurement)


def _ask(workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome, working: bool) -> None:
    """What load to send for how long, or why the plan cannot run here."""
    sources = run_sources.choose_sources(workspace, name, request, plan)
    fault, stand_in = _fault(sources, plan), False
    on_cores = fault and _fault(sources, plan, on_cores=True)
    if fault is not None and on_cores is None:
        stand_in = st.checkbox(
            "Run every slice on a core of this machine instead", key=f"run-stand-in {name}",
            help="The slices of this plan are not here. Answers are the models' own; times are not the plan's.",
        )  # fmt: skip
    left, right = st.columns(2)
    load = left.number_input(
        "Times the demand", 0.01, 1000.0, 1.0, 0.1, key=f"run-load {name}", persist_state="session"
    )
    seconds = right.number_input(
        f"For, in{THIN}s", 2.0, 600.0, 20.0, 5.0, key=f"run-seconds {name}", persist_state="session"
    )
    barred = bool(sources.barred) or (fault is not None and not stand_in)
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Run the plan", type="primary", key="run-start", disabled=working or barred):
            with frame.fault_boundary():
                amounts, runs = (float(load), float(seconds)), (sources.in_place, sources.uploads)
                parameters = MeasureParameters(name, *amounts, stand_in, *runs)
                jobs.start(workspace, f"Run {name}", MEASURE, parameters)
                st.rerun(scope="app")
        if working and st.button("Stop", key="run-stop"):
            jobs.end(workspace, (MEASURE, RUN_HERE), name)
            st.rerun(scope="app")
        st.caption(
            "Requests arrive at random (Poisson, unless the scenario says otherwise), whether or not earlier ones are "
            "answered. Response times include waiting."
        )
    if fault is None:
        _frontend_note(workspace, sources.request, plan, float(load))
    missing = [*sources.barred]
    if fault is not None and not stand_in:
        missing.append(_why_not(fault, on_cores))
    if missing:
        st.warning("\n\n".join(escape_markdown(words) for words in missing))


def _frontend_note(workspace: Workspace, request: PlanRequest, plan: PlanOutcome, load: float) -> None:
    """A warning about load that the front cannot pass, or that its limit is not measured yet."""
    known = workflow.with_front_costs(workspace.store.root, plan, request)
    if words := front_warning(plan, known, load):
        st.warning(escape_markdown(words))
    elif known.front is None and uses_cpu_slices(plan):
        st.caption(
            "What the front passes on this machine is measured before the first run, in about ten seconds."
        )


def _why_not(fault: InputFault, on_cores: InputFault | None) -> str:
    """What is missing here, and what the page offers: the fault's own remedy is for the command line."""
    problem = (
        f"The plan {fault.problem}." if fault.where == "the plan" else f"{fault.where}: {fault.problem}."
    )
    if on_cores is None:
        return f"{problem} Run it where they are, or tick the box: every slice on a core of this machine."
    if on_cores.where.startswith("models: "):
        # The models lack something, on this machine and on any other.
        missing = on_cores.where.removeprefix("models: ")
        return (
            f"This plan cannot run anywhere yet: {on_cores.problem}. Missing: {missing}. Offer the cuts to the "
            "planner on the model's page, and plan again."
        )
    if str(on_cores) == str(fault):
        return str(fault)
    return f"{problem} Run it where they are. The cores of this machine cannot stand in: {on_cores}"


def _fault(sources: Sources, plan: PlanOutcome, *, on_cores: bool = False) -> InputFault | None:
    """Why the plan cannot be served here; None where it can. What its models lack does not count."""
    try:
        places = bind_slices(plan, "cpu" if on_cores else "none")
        if not sources.barred:
            plan_serving(plan, sources.request, places)
    except InputFault as fault:
        return fault
    return None


def _live(workspace: Workspace, name: str) -> None:
    with frame.fault_boundary():
        running = jobs.running(workspace, (MEASURE, RUN_HERE), name)
        if not running:
            st.rerun(scope="app")
        st.progress(running[0].share, text=escape_markdown(running[0].message))
        moments = LiveRunFile(workspace, name).read()
        lines = load_series(moments, scenario.colours(workspace))
        if not lines or not lines[0].seconds:
            only_llms = bool(moments) and moments[0].get("expected") == {}
            st.caption(
                "The engines are loading their models; then the load begins. Figures of LLMs come at its end."
                if only_llms
                else "The workers are loading their models and warming up. Then the load begins."
            )
            return
        last = max(line.seconds[-1] for line in lines)
        drawn = load_chart(lines, max(10.0, last), dark=widgets.is_dark())
        alt = "Rate, 95th percentile and queue of every model as the run goes"
        widgets.chart(drawn, "The run as it goes", f"{name}.run", key="run-live", alt=alt)
        st.caption(
            "Dashed: the plan's rate and the simulation's p95 at this load. Rate and p95 cover the last 3 s."
        )


def load_series(moments: list[dict[str, Any]], colours: dict[str, str]) -> list[LoadSeries]:
    """The moments of a run as a series for each model."""
    if not moments or "expected" not in moments[0]:
        return []
    wanted, seen = moments[0]["expected"], [moment for moment in moments[1:] if "at_s" in moment]
    times, lines = tuple(moment["at_s"] for moment in seen), []
    for name, expect in wanted.items():
        if all(name in moment["models"] for moment in seen):
            figures, colour = [moment["models"][name] for moment in seen], colours.get(name, "#7a8794")
            rates, p95s = (tuple(entry[key] for entry in figures) for key in ("rate_rps", "p95_ms"))
            queued = tuple(sum(moment["queues"][name]["waiting"]) for moment in seen)
            expected = (expect["rate_rps"], expect["p95_ms"])
            lines.append(LoadSeries(name, colour, times, rates, p95s, queued, *expected))
    return lines


def _outcome(
    workspace: Workspace, name: str, request: PlanRequest, plan: PlanOutcome, measurement: Measurement
) -> None:
    """The predicted, simulated and measured figures of the last run."""
    st.header("Predicted, simulated, measured", anchor=False)
    with st.container(horizontal=True, vertical_alignment="center"):
        if measurement.in_place:
            widgets.badge("other models ran in place of the plan's: times say nothing about it", "yellow")
        if measurement.stand_in != "none":
            widgets.badge("on other devices than the plan's: times say nothing about it", "yellow")
        elif not measurement.in_place:
            widgets.badge("measured on this machine", "green")
        if measurement.request_sha256 != plan.request_sha256:
            widgets.badge("of an earlier plan of this scenario: run again", "yellow")
        amount = f"{measurement.duration_s:g}{THIN}s at {measurement.load:g} × the demand"
        st.caption(f"{escape_markdown(measurement.host)}; {amount}")
    for model, source in measurement.in_place.items():
        st.caption(escape_markdown(f"{source} ran in place of {model}."))
    for warning in measurement.warnings:
        st.caption(escape_markdown(warning))
    batch_models = tuple(model for model in measurement.models if model.percentile is None)
    llms = tuple(model for model in measurement.models if model.percentile is not None)
    if batch_models:
        rows, alt = models_table(batch_models, plan), "Predicted, simulated and measured of every model"
        saving.table(rows, f"{name}.measured", key="run-table", alt=alt)
    if llms:
        rows, alt = llms_table(llms, plan), "Times to a token of every LLM, predicted and measured"
        saving.table(rows, f"{name}.measured-llms", key="run-llms", alt=alt)
    deviations = [escape_markdown(f"{fault.message}.") for fault in measurement.disagreements]
    if not deviations:
        st.success("Measured and predicted agree: rates to 10 %, 95th percentiles and batches to 15 %.")
    elif is_met(measurement, request):
        st.success("Every model answered every request, within its limit where it has one.")
        st.markdown("Where times differ from what was planned or simulated by more than 15 %:")
        st.markdown("\n".join(f"- {words}" for words in deviations))
    else:
        for words in deviations:
            st.warning(words)
    if measurement.points and st.button(
        "Use these measurements and plan again", key="run-take-over",
        help="Every batch size that occurred at least 20 times: its measured figures replace those behind the plan.",
    ):  # fmt: skip
        with frame.fault_boundary():
            plan_again(workspace, name, replace_points(request, measurement))
    with st.expander("Slice by slice"):
        rows, alt = slices_table(measurement), "Measured slice by slice"
        saving.table(rows, f"{name}.measured-slices", key="run-slices", alt=alt)


def is_met(measurement: Measurement, request: PlanRequest) -> bool:
    """Whether every model answered at the offered rate, without an error and within its limits."""
    asked = {model.name: model for model in request.models}
    for measured in measurement.models:
        if measured.errors or measured.measured_rps < (1 - RATE_BAND) * measured.offered_rps:
            return False
        model = asked.get(measured.name)
        for limit, taken in () if model is None else _limits(model, measured):
            if limit is not None and (taken is None or taken > limit):
                return False
    return True


def _limits(model: PlanModel, measured: MeasuredModel) -> tuple[tuple[float | None, float | None], ...]:
    """The limits of a model, each with what was measured, in ms."""
    if model.llm is None:
        return ((model.max_response_ms or model.max_latency_ms, measured.measured_ms.p95),)
    ttft, tpot = (
        None if figure is None else figure.value
        for figure in (measured.measured_ttft_ms, measured.measured_tpot_ms)
    )
    # Answers of one token have no time for further ones.
    return (model.llm.max_ttft_ms, ttft), (None if tpot is None else model.llm.max_tpot_ms, tpot)


def llms_table(models: Sequence[MeasuredModel], plan: PlanOutcome) -> pd.DataFrame:
    """A row for each LLM, as texts: the limited percentile and the median of its times."""
    planned = {model.name: model.throughput_rps for model in plan.models}

    def ms(figure: TokenFigure | None) -> str:
        return "n/a" if figure is None else short(figure.value)

    def median(figure: TokenFigure | None) -> str:
        return "n/a" if figure is None or figure.p50 is None else short(figure.p50)

    return pd.DataFrame(
        [
            {
                "model": model.name,
                "sent, requests/s": exact(model.offered_rps, ""),
                "answered": exact(model.measured_rps, ""),
                "the plan carries": exact(planned.get(model.name), ""),
                "percentile": f"p{model.percentile:g}",
                "TTFT predicted, ms": ms(model.predicted_ttft_ms),
                "TTFT measured, ms": ms(model.measured_ttft_ms),
                "TPOT predicted, ms": ms(model.predicted_tpot_ms),
                "TPOT measured, ms": ms(model.measured_tpot_ms),
                "TTFT p50 predicted, ms": median(model.predicted_ttft_ms),
                "TTFT p50 measured, ms": median(model.measured_ttft_ms),
                "TPOT p50 predicted, ms": median(model.predicted_tpot_ms),
                "TPOT p50 measured, ms": median(model.measured_tpot_ms),
                "hop, ms": short(model.hop_ms),
                "errors": str(model.errors),
            }
            for model in models
        ]
    )


def models_table(models: Sequence[MeasuredModel], plan: PlanOutcome) -> pd.DataFrame:
    """A row for each batch model, as texts."""
    planned = {model.name: model.throughput_rps for model in plan.models}

    def ms(value: float | None) -> str:
        return "n/a" if value is None else short(value)

    def between(model: MeasuredModel) -> str:
        low, high = model.simulated_low_ms, model.simulated_high_ms
        return "" if low is None or high is None else f" ({ms(low.p95)} to {ms(high.p95)})"

    return pd.DataFrame(
        [
            {
                "model": measured.name,
                "sent, requests/s": exact(measured.offered_rps, ""),
                "answered": exact(measured.measured_rps, ""),
                "the plan carries": exact(planned.get(measured.name), ""),
                "p95 simulated, ms": ms(measured.simulated_ms.p95) + between(measured),
                "p95 replayed, ms": ms(measured.replayed_ms.p95),
                "p95 measured, ms": ms(measured.measured_ms.p95),
                "p50 simulated, ms": ms(measured.simulated_ms.p50),
                "p50 measured, ms": ms(measured.measured_ms.p50),
                "hop, ms": ms(measured.hop_ms),
                "errors": str(measured.errors),
            }
            for measured in models
        ]
    )


def slices_table(measurement: Measurement) -> pd.DataFrame:
    """A row for each tenant of a slice."""

    def text(value: float | None, unit: str = "") -> str:
        return "n/a" if value is None else f"{value:.3g}{unit}"

    def share(value: float | None) -> str:
        return "n/a" if value is None else f"{100 * value:.0f}{THIN}%"

    return pd.DataFrame(
        [
            {
                "slice": server.id,
                "model": server.model,
                "stage": server.stage,
                "batch planned, ms": text(server.planned_batch_ms),
                "batch measured, ms": text(server.batch_ms),
                "busy, simulated": share(server.simulated_utilisation),
                "busy, measured": share(server.utilisation),
                "mean batch, simulated": text(server.simulated_batch),
                "mean batch, measured": text(server.mean_batch),
                "wait, ms": text(server.wait_ms),
            }
            for server in measurement.servers
        ]
    )
