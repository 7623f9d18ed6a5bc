"""The commands serve and measure: serve a plan on this host until stopped, or under load."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import files, workflow
from torchsplit_core.cli.arguments.clients import access_of, add_client_options, limits_of
from torchsplit_core.cli.arguments.outputs import OutputFile, output_or_tokens_option, read_output_text
from torchsplit_core.cli.arguments.run_folders import add_run_option, with_run_folders
from torchsplit_core.cli.common import Command, Options, with_progress, write_outcome
from torchsplit_core.cli.llm.endpoint import (
    add_endpoint_options,
    given_endpoint_options,
    measure_endpoint,
)
from torchsplit_core.cli.simulate import KINDS, arrivals_of
from torchsplit_core.serving.settings import (
    DEADLINE_S,
    DEFAULT_DURATION_S,
    DEFAULT_PORT,
    LONGEST_QUEUE,
    LoadSettings,
    ServeSettings,
)
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.serving.settings import (
        ReadyServer,
    )
    from torchsplit_core.values import PlanOutcome, PlanRequest, TokenFigure
    from torchsplit_core.values.serving.measurement import MeasuredModel, Measurement


def add_serving_commands(command: Command, trust: Options, output: Options) -> None:
    """Add serve and measure to the command line through its `command(name, run)` and its shared options."""
    parser = command("serve", _serve)
    _plan_options(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N", help=f"default {DEFAULT_PORT}; 0: any free one"
    )
    parser.add_argument(
        "--ready-file",
        action=OutputFile,
        metavar="FILE",
        help="written once all is ready: url and models as JSON",
    )
    add_client_options(parser)
    trust(parser)
    parser = command("measure", _measure)
    _plan_options(parser, needed=False)
    parser.add_argument(
        "--arrivals",
        action="append",
        default=[],
        metavar="KIND",
        help=f"{KINDS}; MODEL=KIND for one; default: the request's, else poisson at the demand",
    )
    parser.add_argument("--load", type=float, default=1.0, metavar="N", help="times every rate (default 1)")
    parser.add_argument(
        "--duration-s", type=float, default=DEFAULT_DURATION_S, metavar="S",
        help=f"of the load (default {DEFAULT_DURATION_S:g})",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the arrivals (default 0)")
    add_endpoint_options(parser)
    trust(parser)
    output_or_tokens_option(parser, "--endpoint")
    parser.add_argument("--json", action="store_true", help="print the outcome to standard output")


def _plan_options(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    parser.add_argument(
        "plan", metavar="PLAN", nargs=None if needed else "?", help="a file of a plan outcome, or -"
    )
    parser.add_argument(
        "--request", required=needed, metavar="PLAN_REQUEST", help="the request that it answers"
    )
    add_run_option(parser)
    parser.add_argument(
        "--stand-in",
        choices=("none", "cpu", "sm"),
        default="none",
        help="run slices that are not here on cores of this host in turn, or on so many SMs of its whole GPUs",
    )
    parser.add_argument(
        "--queue-limit", type=int, default=LONGEST_QUEUE, metavar="N",
        help=f"rows of a model that wait at most, then 429 (default {LONGEST_QUEUE})",
    )  # fmt: skip
    parser.add_argument(
        "--deadline-s", type=float, default=DEADLINE_S, metavar="S",
        help=f"the longest that a request may take, then 504 (default {DEADLINE_S:g})",
    )  # fmt: skip


def _settings(options: argparse.Namespace, host: str, port: int) -> ServeSettings:
    """The settings that both commands share."""
    return ServeSettings(
        host=host,
        port=port,
        queue_limit=options.queue_limit,
        deadline_s=options.deadline_s,
        stand_in=options.stand_in,
        trust=options.trust,
    )


def _files(options: argparse.Namespace) -> tuple[PlanOutcome, PlanRequest]:
    _, outcome = files.read_file(options.plan, expected="torchsplit.plan")
    _, request = files.read_file(options.request, expected="torchsplit.plan_request")
    return outcome, with_run_folders(request, options.runs)


def _serve(options: argparse.Namespace) -> int:
    from torchsplit_core.workspace.store import default_root

    outcome, request = _files(options)
    ready = Path(options.ready_file) if options.ready_file else None

    def announce(serving: ReadyServer) -> None:
        for warning in serving.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        print(f"serving {', '.join(serving.models)} at {serving.url}", file=sys.stderr, flush=True)

    if words := workflow.front_words(outcome, workflow.with_front_costs(default_root(), outcome, request)):
        print(f"warning: {words}", file=sys.stderr, flush=True)
    settings = replace(
        _settings(options, options.host, options.port), access=access_of(options), limits=limits_of(options)
    )
    with_progress(
        lambda progress: workflow.serve(
            outcome, request, settings, progress=progress, ready=ready, announce=announce
        )
    )
    return 0


def _measure(options: argparse.Namespace) -> int:
    read_output_text(options, as_tokens=options.endpoint is not None)
    if options.endpoint is not None:
        if options.plan is not None or options.request is not None:
            problem = f"is given, and the plan {options.plan or options.request} too"
            raise InputFault("--endpoint", problem, "Measure one of them.")
        return measure_endpoint(options)
    if options.plan is None or options.request is None:
        name = "--request" if options.plan else "PLAN"
        raise InputFault(name, "is missing", "Give PLAN --request PLAN_REQUEST, or --endpoint URL.")
    if given := given_endpoint_options(options):
        problem = f"{' and '.join(given)} go with --endpoint, and the plan {options.plan} is given"
        raise InputFault("", problem, "Leave them out, or give --endpoint URL in place of the plan.")
    from torchsplit_core.workspace.store import default_root

    outcome, request = _files(options)
    if options.seed < 0:
        raise InputFault("--seed", f"is {options.seed}, below the least value 0", "Give 0 or more.")
    chosen = arrivals_of(options.arrivals, request)
    load = LoadSettings(options.duration_s, options.load, options.seed)
    if options.stand_in == "none":
        request = with_progress(
            lambda progress: workflow.with_front_costs(
                default_root(), outcome, request, measure=True, progress=progress
            )
        )
    measurement = with_progress(
        lambda progress: workflow.measure(
            outcome,
            request,
            _settings(options, "127.0.0.1", 0),
            load,
            arrivals=lambda model: chosen[model.name],
            progress=progress,
        )
    )
    write_outcome(measurement, options)
    _print_measurement(measurement)
    return 0


def _print_measurement(measurement: Measurement) -> None:
    """Print the main figures to standard error."""
    for warning in measurement.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for model in measurement.models:
        print(format_model(model), file=sys.stderr)
    for deviation in measurement.disagreements:
        print(f"disagreement ({deviation.where}): {deviation.message}", file=sys.stderr)


def format_model(model: MeasuredModel) -> str:
    """One line on a model: rates, then 95th percentiles."""

    def ms(value: float | None) -> str:
        return "n/a" if value is None else f"{value:.4g} ms"

    if model.percentile is not None:
        return _format_llm(model)
    low, high = model.simulated_low_ms, model.simulated_high_ms
    between = "" if low is None or high is None else f" ({ms(low.p95)} to {ms(high.p95)} in 90 % of its runs)"
    return (
        f"{model.name}: {model.offered_rps:.4g} requests/s sent, {model.predicted_rps:.4g} predicted, "
        f"{model.measured_rps:.4g} measured; p95 {ms(model.simulated_ms.p95)} simulated{between}, "
        f"{ms(model.replayed_ms.p95)} replayed, {ms(model.measured_ms.p95)} measured (front {model.hop_ms:.3g} ms); "
        f"{model.errors} errors"
    )


def _format_llm(model: MeasuredModel) -> str:
    """One line on an LLM: rates, then the limited percentile of its times to a token."""

    def ms(figure: TokenFigure | None) -> str:
        return "n/a" if figure is None else f"{figure.value:.4g}"

    return (
        f"{model.name}: {model.offered_rps:.4g} requests/s sent, {model.predicted_rps:.4g} predicted, "
        f"{model.measured_rps:.4g} measured; p{model.percentile:g} of TTFT {ms(model.predicted_ttft_ms)} ms predicted, "
        f"{ms(model.measured_ttft_ms)} measured, of TPOT {ms(model.predicted_tpot_ms)} predicted, "
        f"{ms(model.measured_tpot_ms)} measured; {model.errors} errors"
    )
