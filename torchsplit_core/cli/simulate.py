"""The simulate command: simulates models under load, from a simulation request or a plan."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.outputs import OutputFile
from torchsplit_core.cli.common import Command, Options, engine_option, with_progress, write_outcome
from torchsplit_core.cli.day.replay import add_replay_options, check_replay_options, replay
from torchsplit_core.values import (
    InputFault,
    MaxLoadSearch,
    SimulationRequest,
    TraceArrivals,
)
from torchsplit_core.values.errors import quoted, suggestion
from torchsplit_core.values.simulation import arrivals_text

if TYPE_CHECKING:
    from torchsplit_core.values import (
        ModelLoad,
        PlanModel,
        PlanRequest,
        SimulationOutcome,
    )
    from torchsplit_core.values.simulation.request import Arrivals

KINDS = f"FILE.csv, {arrivals_text.KINDS}"


def add_simulate_command(command: Command, output: Options) -> None:
    """Add simulate to the command line through its `command(name, run)` and its shared options."""
    parser = command("simulate", _simulate)
    parser.add_argument(
        "input",
        metavar="REQUEST|PLAN|DAY",
        help="a simulation request, or with --request a plan, or a day (--trace)",
    )
    parser.add_argument("--request", metavar="PLAN_REQUEST", help="the plan request that it answers")
    parser.add_argument(
        "--arrivals",
        action="append",
        default=[],
        metavar="KIND",
        help=f"of a plan's models: {KINDS}; MODEL=KIND for one; default: the request's, else poisson at the demand",
    )
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="MODEL=MS",
        help="response time asked for; of a plan's models their max_response_ms, else max_latency_ms, unless given",
    )
    parser.add_argument("--load", type=float, default=1.0, metavar="N", help="times every rate (default 1)")
    parser.add_argument("--requests", type=int, metavar="N", help="of each model in a replication")
    parser.add_argument(
        "--replications", type=int, metavar="N", help="independent runs, whose spread the intervals are of"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the random numbers")
    parser.add_argument(
        "--find",
        type=float,
        metavar="PERCENTILE",
        help="also find the largest common factor of all rates at which it stays within every slo_ms",
    )
    parser.add_argument(
        "--save-request",
        action=OutputFile,
        metavar="FILE",
        help="write the simulation request that was run",
    )
    parser.add_argument(
        "--requests-out",
        action=OutputFile,
        metavar="FILE",
        help="write when each request of engines came, began, and had its first and last token (CSV)",
    )
    add_replay_options(parser)
    engine_option(parser)
    output(parser)


def _simulate(options: argparse.Namespace) -> int:
    check_replay_options(options)
    if options.trace:
        return _simulate_day(options)
    request = _request_from_plan(options) if options.request is not None else _request_from_file(options)
    limits = _slo_limits(options.slo, {model.name for model in request.models})
    models = tuple(replace(model, slo_ms=limits.get(model.name, model.slo_ms)) for model in request.models)
    request = replace(request, models=models)
    if options.requests is not None:
        request = replace(request, requests_per_model=options.requests)
    if options.replications is not None:
        request = replace(request, replications=options.replications)
    if options.seed is not None:
        request = replace(request, seed=options.seed)
    if options.find is not None:
        request = replace(request, find=MaxLoadSearch(options.find))
    request = workflow.under_load(request, options.load)
    if options.requests_out and not request.engines:
        raise InputFault(
            "--requests-out",
            "is given, and no server is an engine, of whose requests it would write the tokens",
            "Leave it out.",
        )
    if options.save_request:
        files.write_file(request, options.save_request)
    if options.engine == "ray":
        from torchsplit_core.training.cluster.ray_tasks import run_on_cluster

        outcome = run_on_cluster(workflow.simulate, request)
    else:
        outcome = with_progress(lambda progress: workflow.simulate(request, progress))
    if options.requests_out:
        files.replace_file(Path(options.requests_out), workflow.simulated_requests(request))
    write_outcome(outcome, options)
    _print_outcome(outcome, options.load)
    return 0


def _simulate_day(options: argparse.Namespace) -> int:
    if not options.request:
        raise InputFault(
            "--request", "is missing, and a day does not say what it answers", "Add --request PLAN_REQUEST."
        )
    _, request = files.read_file(options.request, expected="torchsplit.plan_request")
    return replay(options, request, _slo_limits(options.slo, {model.name for model in request.models}))


def _request_from_file(options: argparse.Namespace) -> SimulationRequest:
    name, request = files.read_file(options.input)
    if name == "torchsplit.plan":
        raise InputFault(
            "--request",
            f"is missing, and the plan {options.input} does not say what it answers",
            "Add --request PLAN_REQUEST.",
        )
    if name == "torchsplit.day":
        raise InputFault(
            "--trace",
            "is missing: a day is simulated over a trace of demand",
            "Add --trace TRACE.csv and --request.",
        )
    if not isinstance(request, SimulationRequest):
        raise InputFault(
            options.input,
            f"is a {name}, which cannot be simulated",
            "Pass a torchsplit.simulation_request, or a torchsplit.plan with --request.",
        )
    if options.arrivals:
        raise InputFault(
            "--arrivals",
            f"is given with the simulation request {options.input}, which has its own arrivals",
            "Change them in the file.",
        )
    return request


def _request_from_plan(options: argparse.Namespace) -> SimulationRequest:
    from torchsplit_core.planning.request.hash import request_hash

    _, outcome = files.read_file(options.input, expected="torchsplit.plan")
    _, request = files.read_file(options.request, expected="torchsplit.plan_request")
    if outcome.request_sha256 != request_hash(request):
        print(
            "note: this plan answers another request (--spare and --plan-at make one too); "
            "its slices are simulated with the points and demands of the one given",
            file=sys.stderr,
        )
    chosen = arrivals_of(options.arrivals, request)
    for name in workflow.without_instance(outcome, request):
        print(f"warning: {name} has no instance in this plan and is left out", file=sys.stderr)
    return workflow.simulation_request(outcome, request, lambda model: chosen[model.name])


def arrivals_of(given: Sequence[str], request: PlanRequest) -> dict[str, Arrivals]:
    """Arrivals by model: from its own entry, else from the entry without a model, else from the request."""
    from torchsplit_core.tables.arrival_times import read_arrival_times

    names = [model.name for model in request.models]
    kinds: dict[str, str] = {}
    named: dict[str, str] = {}
    for text in given:
        name, separator, kind = text.partition("=")
        if separator and name in names:
            named[name] = kind
        else:
            kinds = dict.fromkeys(names, text)
    kinds |= named
    tables = {kind: read_arrival_times(kind) for kind in set(kinds.values()) if kind.lower().endswith(".csv")}
    return {
        model.name: _parse_arrivals(model, kinds[model.name], tables)
        if model.name in kinds
        else model.expected_arrivals
        for model in request.models
    }


def _parse_arrivals(
    model: PlanModel, kind: str, tables: Mapping[str, Mapping[str | None, tuple[float, ...]]]
) -> Arrivals:
    """The arrivals of one model, at its demand. Raises InputFault for an unknown kind."""
    if kind in tables:
        times = tables[kind].get(model.name, tables[kind].get(None))
        if times is None:
            raise InputFault(
                "--arrivals",
                f"{kind} has no row of the model {quoted(model.name)}",
                f"Add its rows, or give --arrivals {model.name}=KIND.",
            )
        return TraceArrivals(times)
    return arrivals_text.parse_arrivals(kind, model.demand_rps, "--arrivals")


def _slo_limits(given: Sequence[str], names: set[str]) -> dict[str, float]:
    limits = {}
    for entry in given:
        name, _, value = entry.partition("=")
        try:
            limits[name] = float(value)
        except ValueError as error:
            raise InputFault(
                "--slo", f"{quoted(entry)} is not MODEL=MS", "Write for example bert=200."
            ) from error
        if name not in names:
            raise InputFault(
                "--slo", f"unknown model {quoted(name)}", suggestion(name, sorted(names), "models")
            )
    return limits


def _print_outcome(outcome: SimulationOutcome, factor: float) -> None:
    """Print the main figures to standard error; the simulated rates are `factor` times the request's."""
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for model in outcome.models:
        print(format_model_load(model), file=sys.stderr)
    load = outcome.highest_load
    simulated = "" if factor == 1 else f"; simulated above: {factor:g} times"
    if load is not None and load.factor is not None and load.high is not None:
        print(
            f"highest load: p{load.percentile:g} keeps every limit at {factor * load.factor:.4g} times the request's "
            f"rates, no longer at {factor * load.high:.4g}{simulated}",
            file=sys.stderr,
        )
    elif load is not None:
        print(f"highest load: {load.message}", file=sys.stderr)


def format_model_load(model: ModelLoad) -> str:
    """The text on a model under load that `simulate` and `plan --simulate` print."""
    offered = "n/a" if model.offered_rps is None else f"{model.offered_rps:.4g}"
    text = f"{model.name}: {offered} of {model.capacity_rps:.4g} requests/s offered"
    if model.throughput_rps:
        # In a finite time random arrivals deviate a little from their rate.
        span = model.completed / model.throughput_rps
        seconds = f"{span:,.0f}" if span >= 100 else f"{span:.3g}"
        text += f", {model.throughput_rps:.4g} served over {seconds} s simulated"
    times = model.response_ms
    if times.mean is None or times.p95 is None or times.p99 is None:
        return f"{text}, not stable: no response times"
    width = model.response_ci95_ms.p95
    sure = "" if width is None else f" ± {width:.2g}"
    low, high = model.response_low_ms, model.response_high_ms
    between = ""
    if low is not None and high is not None:
        between = f" (estimated: {low.p95:.4g} to {high.p95:.4g} in 90 % of the runs, as this host changes its speed)"
    text += (
        f", response mean {times.mean:.4g} ms, p95 {times.p95:.4g}{sure} ms{between}, p99 {times.p99:.4g} ms"
    )
    if model.slo_attainment is not None:
        text += f", {model.slo_attainment:.2%} within the limit"
    return text + _format_tokens(model)


def _format_tokens(model: ModelLoad) -> str:
    """What comes after the response of a model with engines; empty for another model."""
    text = ""
    for name, times, widths in (
        ("TTFT", model.ttft_ms, model.ttft_ci95_ms),
        ("TPOT", model.tpot_ms, model.tpot_ci95_ms),
    ):
        if times is not None and times.mean is not None and times.p95 is not None:
            width = None if widths is None else widths.p95
            sure = "" if width is None else f" ± {width:.2g}"
            text += f", {name} mean {times.mean:.4g} ms, p95 {times.p95:.4g}{sure} ms"
    if model.output_tokens_per_s is not None:
        text += f", {model.output_tokens_per_s:.4g} output tokens/s"
    if model.goodput is not None:
        text += f", goodput {model.goodput:.2%}"
    return text
