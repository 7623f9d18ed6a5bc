"""Fewest GPUs on which every model's p95 response stays within its published objective, at Poisson demand.

The published serving mixes, larger ones drawn from the measured library (rates and objectives drawn around the
published ones, seeded), and busy ones: S3 at two to three times its rates and 0.35 to 0.9 of its objectives. Three
plans of each: for the response time (max_response_ms), also with shares of slices; by the published rule, which lets a
batch take 0.45 of the objective; and for service times alone, which lets it take all of it. Each is simulated. "p95 /
objective" is the upper end of the 95 % interval of the worst model, "late" the largest share of a model's responses
beyond its objective; "n/a": no plan, or more arrives than can be served. Of rates as measured; untested on hardware.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.planner_report import ended, heading, row, value_text
from torchsplit_core import workflow
from torchsplit_core.planning import violations
from torchsplit_core.profiling.library import LATENCY_SHARE_OF_SLO, mix_request, serving_mixes
from torchsplit_core.values import PlanModel, PlanOutcome, PlanRequest, SolverOptions

DRAWN = (16, 24, 32)
"""Numbers of models of the larger mixes."""

BUSY = ((2.2, 0.7), (2.4, 0.6), (2.6, 0.8), (2.3, 0.5), (2.8, 0.65), (2.5, 0.4), (2.0, 0.35), (3.0, 0.9))
"""Of busy mixes: factors on the rates and objectives of S3, each then times 0.85 to 1.15 by model, by the seed."""


def published() -> Iterator[tuple[str, PlanRequest, dict[str, float]]]:
    """Each published mix with its objectives in ms."""
    for mix in serving_mixes():
        request = mix_request(mix.name, 8, "min_gpus")
        yield mix.name, request, {entry.model: entry.slo_ms for entry in mix.models}


def drawn(models: int, seed: int) -> tuple[str, PlanRequest, dict[str, float]]:
    """Draw models from the published mixes, with rates times 0.25 to 1.5 and objectives times 0.7 to 2."""
    draw = random.Random(seed)
    pool = [(model, slos[model.name]) for _, request, slos in published() for model in request.models]
    found: list[PlanModel] = []
    limits: dict[str, float] = {}
    for number in range(models):
        model, slo = draw.choice(pool)
        name, rate = f"{model.name}-{number}", round(model.demand_rps * draw.uniform(0.25, 1.5), 1)
        found.append(replace(model, name=name, demand_rps=rate, min_throughput_rps=rate))
        limits[name] = round(slo * draw.uniform(0.7, 2.0), 1)
    base = mix_request("S1", models, "min_gpus")
    return f"drawn-{models}", replace(base, models=tuple(found)), limits


def busy(rate: float, objective: float, seed: int) -> tuple[str, PlanRequest, dict[str, float]]:
    """S3 with its rates and objectives times about these factors."""
    draw = random.Random(seed)
    request, slos = next((request, slos) for name, request, slos in published() if name == "S3")
    models: list[PlanModel] = []
    limits: dict[str, float] = {}
    for model in request.models:
        rps = round(model.demand_rps * rate * draw.uniform(0.85, 1.15), 1)
        models.append(replace(model, demand_rps=rps, min_throughput_rps=rps))
        limits[model.name] = round(slos[model.name] * objective * draw.uniform(0.85, 1.15), 1)
    fleet = tuple(replace(entry, count=24) for entry in request.gpus)
    return f"S3 x {rate:g} in {objective:g}", replace(request, models=tuple(models), gpus=fleet), limits


def plans(request: PlanRequest, limits: dict[str, float]) -> dict[str, PlanRequest]:
    """The request for the response time, whole slices or shares, by the published rule, and for service times alone."""

    def each(service: float | None, *, waiting: bool) -> PlanRequest:
        return replace(
            request,
            models=tuple(
                replace(
                    model,
                    max_latency_ms=None if service is None else service * limits[model.name],
                    max_response_ms=limits[model.name] if waiting else None,
                )
                for model in request.models
            ),
        )

    plain = each(None, waiting=True)
    return {
        "response time": plain,
        "response time, shares": replace(plain, sharing="fractional"),
        "published rule": each(LATENCY_SHARE_OF_SLO, waiting=False),
        "service only": each(1.0, waiting=False),
    }


def worst(
    request: PlanRequest, outcome: PlanOutcome, limits: dict[str, float], requests: int
) -> tuple[float | None, float | None]:
    """Largest p95 (upper end) / objective of the models, and largest late share; None if a model is unstable."""
    made = workflow.simulation_request(outcome, request)
    models = tuple(replace(model, slo_ms=limits[model.name]) for model in made.models)
    found = workflow.simulate(replace(made, models=models, requests_per_model=requests)).models
    ratios = [
        None
        if load.response_ms.p95 is None
        else (load.response_ms.p95 + (load.response_ci95_ms.p95 or 0.0)) / limits[load.name]
        for load in found
    ]
    late = [None if load.slo_attainment is None else 1 - load.slo_attainment for load in found]
    known, shares = [one for one in ratios if one is not None], [one for one in late if one is not None]
    whole = len(known) == len(ratios)
    return (max(known), max(shares)) if whole else (None, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each plan")
    parser.add_argument("--drawn", type=int, nargs="*", default=list(DRAWN), help="models of drawn mixes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100_000, help="of each model in a replication")
    options = parser.parse_args()
    print(
        heading(
            ("mix", "models", "plan", "GPUs", "bound", "ended", "wall s", "p95 / objective", "late", "holds")
        )
    )
    wrong: list[str] = []
    mixes = [*published(), *(drawn(count, options.seed) for count in options.drawn)]
    mixes += [busy(rate, objective, options.seed + number) for number, (rate, objective) in enumerate(BUSY)]
    for name, request, limits in mixes:
        for kind, asked in plans(request, limits).items():
            asked = replace(asked, solver=SolverOptions(options.seconds))
            begun = time.perf_counter()
            outcome = workflow.plan(asked)
            wall = time.perf_counter() - begun
            wrong += [f"{name}, {kind}: {fault}" for fault in violations(asked, outcome)]
            ratio, late = worst(asked, outcome, limits, options.requests) if outcome.gpus else (None, None)
            holds = ratio is not None and ratio <= 1
            if kind.startswith("response time") and not holds:
                wrong.append(f"{name}: {outcome.status}, p95 / objective {ratio}")
            cells = (
                name,
                len(request.models),
                kind,
                value_text(outcome.objective.value),
                value_text(outcome.objective.bound),
                ended(outcome.status, outcome.objective.gap),
                f"{wall:.1f}",
                "n/a" if ratio is None else f"{ratio:.3f}",
                "n/a" if late is None else f"{late:.2%}",
                "yes" if holds else "no",
            )
            print(row(cells), flush=True)
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
