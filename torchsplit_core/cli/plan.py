"""The commands request and plan: from profiles and a fleet to a plan."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from torchsplit_core import files, workflow
from torchsplit_core.cli import plan_summary
from torchsplit_core.cli.arguments.defaults import default_gpus, default_time_limit
from torchsplit_core.cli.arguments.outputs import OutputFile, output_and_tokens_option, read_output_texts
from torchsplit_core.cli.arguments.price_option import prices_option, with_prices_option
from torchsplit_core.cli.arguments.request_options import (
    add_plan_at,
    add_request_options,
    apply_demands_as_minima,
    demands_as_minima_option,
    request_keywords,
    with_colocations,
)
from torchsplit_core.cli.arguments.sample_options import (
    add_attainment_option,
    add_holdout_option,
    add_samples_options,
    applied_attainment,
    holdout_line,
    planned_half,
    with_sample_options,
)
from torchsplit_core.cli.arguments.state_options import (
    current_option,
    fleet_of,
    read_state_file,
    with_current,
)
from torchsplit_core.cli.common import EXIT_OF_STATUS, Command, Options, with_progress, write_outcome
from torchsplit_core.cli.day.over_windows import check_day_options, plan_over_windows
from torchsplit_core.cli.llm.request_llms import add_llm_options, llm_models
from torchsplit_core.cli.transition import times_options
from torchsplit_core.files.contract import origin_of
from torchsplit_core.values import InputFault, Objective, ObjectiveKind
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.limits import check_number

if TYPE_CHECKING:
    from torchsplit_core.cli.common import LineProgress
    from torchsplit_core.values import PlanOutcome, PlanRequest

TIME_LIMIT_S = 60.0
SIMULATED_REQUESTS = 20_000
"""Requests of each model in a replication of `plan --simulate`."""


def add_plan_commands(command: Command, output: Options) -> None:
    """Add request and plan to the command line through its `command(name, run)` and its shared options."""
    parser = command("request", _request)
    parser.add_argument(
        "profiles", nargs="*", metavar="PROFILE", help="files of profiles; one may be -; none with --llm"
    )
    parser.add_argument(
        "--gpus",
        metavar="2xA100-80GB,1xA30-24GB:whole,1xCPU-16c",
        help="also ID=TYPE, with @cost=N (its price an hour), @node=NAME, @layouts=7x1g.10gb/3g.40gb+4g.40gb behind a "
        "type (default: the GPUs of --current, else TORCHSPLIT_GPUS, else gpus of torchsplit.toml)",
    )
    current_option(parser)
    parser.add_argument(
        "--candidates", nargs="+", default=[], metavar="FILE", help="partitions: each cut becomes a variant"
    )
    for option, text in (
        ("--demand", "requests/s to serve"),
        ("--min-throughput", "requests/s below which a plan is refused"),
        ("--max-latency", "ms one batch may take"),
        ("--max-response", "ms within which 95 %% of responses come, queues included, Poisson at the demand"),
        ("--weight", "its say in fairness"),
        ("--tier", "rank, 0 to 1000: higher tiers are served up to their demand before lower ones"),
    ):
        parser.add_argument(option, action="append", default=[], metavar="MODEL=N", help=text)
    parser.add_argument(
        "--objective",
        default="leximin",
        choices=get_args(ObjectiveKind),
        help="what a plan is best in (default leximin: the worst-served model first, then the next)",
    )
    _spare_option(parser, 0)
    demands_as_minima_option(parser)
    parser.add_argument(
        "--sharing",
        default="exclusive",
        choices=("exclusive", "fractional"),
        help="whether a slice has one model, or several by shares of its time (default exclusive)",
    )
    parser.add_argument(
        "--link", type=float, metavar="GB_PER_S", help="between stages; left out, transfers take no time"
    )
    parser.add_argument("--network", type=float, metavar="GB_PER_S", help="between GPUs of different nodes")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="S",
        help="seconds that `plan` may search (default: TORCHSPLIT_TIME_LIMIT, else time_limit of torchsplit.toml, "
        "else 60)",
    )
    prices_option(parser)
    add_samples_options(parser)
    add_request_options(parser)
    add_llm_options(parser)
    output_and_tokens_option(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome to standard output")

    parser = command("plan", _plan)
    parser.add_argument("request", metavar="REQUEST", help="a file of a plan request, or -")
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="seconds to search (default: the request's)"
    )
    _spare_option(parser, None)
    demands_as_minima_option(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="add what binds each model, what changes would bring and why no other layout (at most 20 s more)",
    )
    parser.add_argument(
        "--simulate",
        action="store_true",
        help="also print response times (p95) at the arrivals of the request, waits included",
    )
    add_attainment_option(parser)
    add_holdout_option(parser)
    add_plan_at(parser)
    current_option(parser)
    prices_option(parser)
    parser.add_argument(
        "--max-touched",
        type=int,
        metavar="N",
        help="change at most N GPUs of the current state (objective.max_touched_gpus)",
    )
    parser.add_argument(
        "--over-windows",
        action="store_true",
        help="a plan for each of the request's demand_windows and the transitions between them, beside one plan that "
        "holds all day",
    )
    times_options(parser)
    parser.add_argument(
        "--save-request", action=OutputFile, metavar="FILE", help="write the request that the plan answers"
    )
    output(parser)


def _spare_option(parser: argparse.ArgumentParser, default: int | None) -> None:
    parser.add_argument(
        "--spare",
        type=int,
        choices=(0, 1),
        default=default,
        metavar="0|1",
        help="1: every minimum still holds with any one GPU lost (objective.survives)",
    )


def _request(options: argparse.Namespace) -> int:
    from torchsplit_core.planning.request.build import build_request
    from torchsplit_core.planning.request.fleet_text import parse_fleet
    from torchsplit_core.planning.request.validate import check_minima, validate

    read_output_texts(options)
    llms = llm_models(options) if options.llm or options.points else ()
    profiles = [files.read_file(path, expected="torchsplit.profile")[1] for path in options.profiles]
    state = None if options.current is None else read_state_file(options.current)
    request = build_request(
        profiles,
        parse_fleet(_fleet(options)) if state is None or options.gpus is not None else fleet_of(state),
        candidates=[files.read_file(path, expected="torchsplit.partition")[1] for path in options.candidates],
        demands=_values_by_model("--demand", options.demand),
        min_throughputs=_values_by_model("--min-throughput", options.min_throughput),
        max_latencies=_values_by_model("--max-latency", options.max_latency),
        max_responses=_values_by_model("--max-response", options.max_response),
        weights=_values_by_model("--weight", options.weight),
        tiers=_values_by_model("--tier", options.tier),
        objective=Objective(
            options.objective, options.memory_penalty, options.separation_weight, options.spare
        ),
        sharing=options.sharing,
        link_gb_per_s=options.link,
        network_gb_per_s=options.network,
        time_limit_s=_time_limit(options),
        llms=llms,
        **request_keywords(options),
    )
    request = replace(apply_demands_as_minima(with_colocations(request, options), options), current=state)
    request = with_prices_option(with_sample_options(request, options), options)
    validate(request)
    check_minima(request)
    for model in request.models:
        if not model.points and model.llm is None:
            print(f"warning: {model.name} has no profile row for a slice of this fleet", file=sys.stderr)
    write_outcome(request, options)
    return 0


def _plan(options: argparse.Namespace) -> int:
    check_day_options(options)
    _, request = files.read_file(options.request, expected="torchsplit.plan_request")
    request = _apply_time_limit(
        _apply_demands_as_minima(_apply_plan_at(request, options.plan_at), options), options.time_limit
    )
    request = with_current(request, options)
    unpriced, request = request, with_prices_option(request, options)
    if request != unpriced:
        print(
            f"note: priced by {origin_of(options.prices)}, so this answers the request with these costs",
            file=sys.stderr,
        )
    if options.max_touched is not None:
        limit = options.max_touched
        print(f"note: this answers the request with objective.max_touched_gpus {limit}", file=sys.stderr)
        request = replace(request, objective=replace(request.objective, max_touched_gpus=limit))
    every_sample = applied_attainment(request, options)
    request = planned_half(every_sample, options)
    if options.save_request:
        files.write_file(request, options.save_request)
    request = with_progress(lambda progress: workflow.with_engine_points(request, progress))
    if options.spare is not None:
        request = replace(request, objective=replace(request.objective, survives=options.spare))
    if options.over_windows:
        return plan_over_windows(request, options)
    outcome = with_progress(
        lambda progress: workflow.plan(
            request,
            explain=options.explain,
            progress=progress,
            on_plan=partial(_note_plan, progress) if progress.live else None,
        )
    )
    write_outcome(outcome, options)
    plan_summary.print_summary(request, outcome)
    if options.holdout and outcome.gpus:
        print(holdout_line(every_sample, request, outcome), file=sys.stderr)
    if options.simulate:
        _simulate(request, outcome)
    return EXIT_OF_STATUS[outcome.status]


def _note_plan(progress: LineProgress, plan: PlanOutcome) -> None:
    if plan.gpus:
        progress.add_note(f"first plan: least normalised rate {plan.objective.sorted_normalised[0]:.4g}")


def _simulate(request: PlanRequest, outcome: PlanOutcome) -> None:
    """Print simulated response times at the demand to standard error; the exit code is not affected."""
    from torchsplit_core.cli.simulate import format_model_load

    if not any(gpu.slices for gpu in outcome.gpus):
        print("simulated: n/a, the plan has no slice", file=sys.stderr)
        return
    simulation = replace(workflow.simulation_request(outcome, request), requests_per_model=SIMULATED_REQUESTS)
    result = with_progress(lambda progress: workflow.simulate(simulation, progress))
    for model in result.models:
        print(f"simulated: {format_model_load(model)}", file=sys.stderr)
    for name in workflow.without_instance(outcome, request):
        print(f"simulated: {name}: n/a, no instance", file=sys.stderr)


def _apply_plan_at(request: PlanRequest, plan_at: Literal["nominal", "low"] | None) -> PlanRequest:
    """Apply `--plan-at` to the request; print a note if that changes it."""
    if plan_at in (None, request.solver.plan_at):
        return request
    print(
        f"note: planned at {plan_at}, so this answers the request with solver.plan_at {plan_at}",
        file=sys.stderr,
    )
    return replace(request, solver=replace(request.solver, plan_at=plan_at))


def _apply_demands_as_minima(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """Apply `--demands-as-minima` to the request; print a note if that changes it."""
    if options.over_windows and options.demands_as_minima:
        from torchsplit_core.day_plans.window_requests import with_demands_as_minima

        changed = with_demands_as_minima(request)
    else:
        changed = apply_demands_as_minima(request, options)
    if changed != request:
        print(
            "note: demands are taken as minima, so this answers the request with these minima",
            file=sys.stderr,
        )
    return changed


def _apply_time_limit(request: PlanRequest, seconds: float | None) -> PlanRequest:
    """Apply `--time-limit` to the request; print a note if that changes it."""
    if seconds is None or seconds == request.solver.time_limit_s:
        return request
    check_number("--time-limit", seconds, positive=True)
    print(
        f"note: searched for {seconds:g} s, so this answers the request with solver.time_limit_s {seconds:g}",
        file=sys.stderr,
    )
    return replace(request, solver=replace(request.solver, time_limit_s=seconds))


def _fleet(options: argparse.Namespace) -> str:
    """`--gpus`, or else the site's default fleet."""
    if options.gpus is not None:
        return str(options.gpus)
    default = default_gpus()
    if default is None:
        raise InputFault("request", "--gpus is missing", "See torchsplit request --help.")
    print(f"note: the fleet is {default[0]}, of {default[1]}", file=sys.stderr)
    return default[0]


def _time_limit(options: argparse.Namespace) -> float:
    if options.time_limit is not None:
        return float(options.time_limit)
    default = default_time_limit()
    return TIME_LIMIT_S if default is None else default


def _values_by_model(option: str, entries: Sequence[str]) -> dict[str, float]:
    """Parse `bert=20` entries; an option may be repeated or have several, comma-separated."""
    table: dict[str, float] = {}
    for entry in (part for text in entries for part in text.split(",")):
        name, separator, value = entry.partition("=")
        try:
            table[name.strip()] = float(value)
        except ValueError:
            separator = ""
        if not separator or not name.strip():
            raise InputFault(option, f"{quoted(entry)} is not MODEL=NUMBER", "Write for example bert=20.")
    return table
