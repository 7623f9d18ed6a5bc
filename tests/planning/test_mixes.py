"""The measured A100 mixes: fewest GPUs proven, and a verified leximin plan within its time."""

import csv
import json

import pytest

from tests.support.paths import ROOT
from tests.support.planning.requests import whole_model
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.formulation.objectives import find_any_plan
from torchsplit_core.values import FleetEntry, Objective, PlanRequest, Point, SolverOptions

DATA = ROOT / "torchsplit_core" / "profiling" / "data"
PROFILES = {"1": "1g.10gb", "2": "2g.20gb", "3": "3g.40gb", "4": "4g.40gb", "7": "7g.80gb"}
A100 = "A100-80GB"


def mix(name: str, kind: str, gpus: int, seconds: float) -> PlanRequest:
    """A serving mix: points quicker than 0.45 of the latency objective, at most 3 processes a slice."""
    models = json.loads((DATA / "serving_mixes_a100_80gb.json").read_text(encoding="utf-8"))["scenarios"][
        name
    ]
    with (DATA / "measured_profiles_a100_80gb.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for model in models:
        limit = 0.45 * model["slo_ms"]
        points = tuple(
            Point(
                A100, PROFILES[row["compute_slices"]], int(row["batch_size"]), float(row["throughput_rps"]),
                float(row["latency_ms"]), int(row["processes"]),
            )
            for row in rows
            if row["model"] == model["model"]
            and int(row["processes"]) <= 3
            and float(row["latency_ms"]) < limit
        )  # fmt: skip
        found.append(whole_model(
            model["model"], points, demand_rps=model["rate_rps"],
            min_throughput_rps=model["rate_rps"] if kind == "min_gpus" else None, max_latency_ms=limit,
        ))  # fmt: skip
    return PlanRequest(
        (FleetEntry(A100, count=gpus),),
        tuple(found),
        objective=Objective(kind),  # type: ignore[arg-type]
        solver=SolverOptions(seconds),
    )


@pytest.mark.parametrize(("name", "fewest"), [("S1", 2), ("S3", 5)])
def test_fewest_gpus(name, fewest):
    outcome = plan(mix(name, "min_gpus", 8, 60.0))
    assert (outcome.status, outcome.objective.value, outcome.objective.bound) == ("optimal", fewest, fewest)
    assert sum(gpu.used for gpu in outcome.gpus) == fewest


def test_one_gpu_fewer_is_infeasible_and_explained():
    outcome = plan(mix("S1", "min_gpus", 1, 20.0))
    assert outcome.status == "infeasible"
    assert outcome.conflicts and outcome.least_relaxation


def test_leximin_of_eleven_models_on_five_gpus():
    request = mix("S3", "leximin", 5, 2.5)
    outcome = plan(request)
    assert outcome.status in ("optimal", "feasible")
    assert not list(violations(request, outcome))
    # The first level, 1.1284 times every demand, is proven in well under a second by itself.
    first = plan(mix("S3", "max_min", 5, 60.0))
    assert first.status == "optimal" and first.objective.value == pytest.approx(1.12839410, rel=1e-6)
    if outcome.objective.proven_levels:
        assert outcome.objective.value == pytest.approx(first.objective.value)
    assert (outcome.objective.bound is None) == (outcome.objective.gap is None)


def test_any_plan_is_a_plan():
    from torchsplit_core.planning.formulation.build import build
    from torchsplit_core.planning.problem.build import build_problem

    built = build(build_problem(mix("S1", "min_gpus", 3, 1.0)), "exclusive")
    outcome = find_any_plan(built, 5.0)
    assert outcome.status == "feasible" and outcome.best is not None
    for spec, rate in zip(built.problem.request.models, outcome.best.rates, strict=True):
        assert rate >= (spec.min_throughput_rps or 0.0) * (1 - 1e-6)
