"""Options of demand samples: where a request takes them from, the share to hold, and half of them held out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.values import PlanOutcome, PlanRequest


def add_samples_options(parser: argparse.ArgumentParser) -> None:
    """Add where the samples of `request` come from, and the share of them to hold."""
    parser.add_argument(
        "--demand-samples",
        metavar="TRACE.csv",
        help="requests/s of every model at the same moments: columns time_s and one of each model's name",
    )
    parser.add_argument(
        "--draw", type=int, metavar="N", help="draw N samples around the demands in place of a trace"
    )
    parser.add_argument(
        "--correlation", type=float, default=0.0, metavar="R", help="of drawn samples, between any two models"
    )
    parser.add_argument(
        "--cv",
        type=float,
        default=0.3,
        metavar="C",
        help="of drawn samples: deviation over mean (default 0.3)",
    )
    add_attainment_option(parser)


def add_attainment_option(parser: argparse.ArgumentParser) -> None:
    """Add `--attainment`."""
    parser.add_argument(
        "--attainment",
        type=float,
        metavar="A",
        help="the fewest GPUs on which this part of the demand samples is held, in place of the minima (0.95)",
    )


def add_holdout_option(parser: argparse.ArgumentParser) -> None:
    """Add `--holdout`."""
    parser.add_argument(
        "--holdout",
        action="store_true",
        help="plan for every second demand sample, and say what share of the others the plan holds",
    )


def with_sample_options(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """The request of `request` with its samples and its share. Raises InputFault."""
    if options.demand_samples is not None and options.draw is not None:
        raise InputFault("--draw", "is given, and --demand-samples too", "Give one of the two.")
    if options.demand_samples is not None:
        from torchsplit_core.cli.tables import read_table
        from torchsplit_core.tables.demand_trace.joint_moments import joint_moments
        from torchsplit_core.tables.demand_trace.trace_csv import read_demand_trace

        trace = read_demand_trace(read_table(options.demand_samples), options.demand_samples)
        moments = joint_moments(trace, [model.name for model in request.models], options.demand_samples)
        if moments.left_out:
            print(
                f"note: {moments.left_out} of {trace.moments} moments of {options.demand_samples} have no value of "
                "some model, and are left out",
                file=sys.stderr,
            )
        models = (replace(model, demand_samples=moments.rates[model.name]) for model in request.models)
        request = replace(request, models=tuple(models))
    elif options.draw is not None:
        from torchsplit_core.planning.sample_plans.drawn import drawn_samples

        request = drawn_samples(request, options.draw, options.correlation, options.cv, request.seed)
    return with_attainment(request, options.attainment)


def with_attainment(request: PlanRequest, share: float | None) -> PlanRequest:
    """The request for the least cost of holding this share of its samples; None: as it is."""
    if share is None:
        return request
    from torchsplit_core.planning.request.objective import least_cost_objective

    return replace(request, objective=replace(least_cost_objective(request.objective), attainment=share))


def applied_attainment(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """Apply `--attainment` of `plan`; print a note if that changes the request."""
    changed = with_attainment(request, options.attainment)
    if changed != request:
        print(
            f"note: this answers the request with objective {changed.objective.kind} and attainment "
            f"{options.attainment:g}",
            file=sys.stderr,
        )
    return changed


def planned_half(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """The request that `--holdout` plans: with every second of its samples. Raises InputFault."""
    if not options.holdout:
        return request
    from torchsplit_core.planning.sample_plans.holdout import planned_samples

    print("note: this answers the request with every second of its demand samples", file=sys.stderr)
    return planned_samples(request)


def sample_lines(outcome: PlanOutcome) -> Iterator[str]:
    """How many samples the plan holds, and which model most often stands in the way."""
    samples = outcome.samples
    if samples is None or not outcome.gpus:
        return
    asked = "" if samples.required is None else f", {samples.required:,} asked for"
    yield f"{samples.held:,} of {samples.count:,} samples are held ({samples.share:.4g} of them){asked}"
    for model in outcome.models:
        if model.name == samples.worst_model and model.samples_held is not None:
            yield f"least often served: {model.name}, in {model.samples_held:,} of {samples.count:,} samples"


def holdout_line(every_sample: PlanRequest, request: PlanRequest, outcome: PlanOutcome) -> str:
    """What share of the samples held out the plan of `request` holds; `every_sample` has all of them."""
    from torchsplit_core.planning.sample_plans.holdout import held_of_others

    pairs = zip(request.models, every_sample.models, strict=True)
    models = (replace(model, demand_samples=whole.demand_samples) for model, whole in pairs)
    held, count = held_of_others(replace(request, models=tuple(models)), outcome)
    return (
        f"of the {count:,} samples that planning did not see, {held:,} are held ({held / count:.4g} of them)"
    )
