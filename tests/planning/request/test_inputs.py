"""Bad input is refused with one clear message; odd but sound input is planned."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, on_a30, published, simple, whole_model
from torchsplit_core.planning import plan, solve_leximin, solve_leximin_shared
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    Objective,
    PlanModel,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)

BASE = published()
POINT = Point(A30, "4g.24gb", 1, 10.0, 10.0)


def with_point(**fields: object) -> PlanRequest:
    point = replace(POINT, **fields)  # type: ignore[arg-type]
    return replace(BASE, models=(whole_model("a", (point,)),))


def with_model(**fields: object) -> PlanRequest:
    return replace(BASE, models=(simple("a", {"4g.24gb": 1.0}, **fields),))


def with_variant(*variants: Variant) -> PlanRequest:
    return replace(BASE, models=(PlanModel("a", variants),))


WHOLE = Variant("whole", (Stage("whole", (POINT,)),))
BAD = {
    "no GPUs": replace(BASE, gpus=()),
    "no models": replace(BASE, models=()),
    "unknown type": replace(BASE, gpus=(FleetEntry("A31"),)),
    "a million GPUs": replace(BASE, gpus=(FleetEntry(A30, count=1_000_000),)),
    "no count": replace(BASE, gpus=(FleetEntry(A30, count=0),)),
    "id and count": replace(BASE, gpus=(FleetEntry(A30, id="a", count=2),)),
    "duplicate ids": replace(BASE, gpus=(FleetEntry(A30, id="a"), FleetEntry(A30, id="a"))),
    "negative cost": replace(BASE, gpus=(FleetEntry(A30, cost=-1.0),)),
    "illegal layout": replace(BASE, gpus=(FleetEntry(A30, layouts=(("4g.24gb", "1g.6gb"),)),)),
    "no layouts": replace(BASE, gpus=(FleetEntry(A30, layouts=()),)),
    "foreign profile": replace(BASE, gpus=(FleetEntry(A30, layouts=(("7g.80gb",),)),)),
    "duplicate models": replace(BASE, models=(BASE.models[0], BASE.models[0])),
    "no name": replace(BASE, models=(replace(BASE.models[0], name=""),)),
    "no variants": with_variant(),
    "no stages": with_variant(Variant("whole", ())),
    "duplicate variants": with_variant(WHOLE, WHOLE),
    "duplicate stages": with_variant(Variant("cut", WHOLE.stages * 2, (1.0,))),
    "cuts missing": with_variant(Variant("cut", (WHOLE.stages[0], Stage("b", (POINT,))))),
    "negative cut": with_variant(Variant("cut", (WHOLE.stages[0], Stage("b", (POINT,))), (-1.0,))),
    "duplicate points": with_variant(Variant("whole", (Stage("whole", (POINT, POINT)),))),
    "unknown profile": with_point(profile="3g.40gb"),
    "unknown point type": with_point(gpu_type="A31"),
    "negative throughput": with_point(throughput_rps=-1.0),
    "NaN throughput": with_point(throughput_rps=float("nan")),
    "endless latency": with_point(latency_ms=float("inf")),
    "huge throughput": with_point(throughput_rps=1e300),
    "text throughput": with_point(throughput_rps="fast"),
    "batch of zero": with_point(batch_size=0),
    "no processes": with_point(processes=0),
    "negative memory": with_point(memory_gib=-1.0),
    "no weight": with_model(weight=0.0),
    "no demand": with_model(demand_rps=0.0),
    "negative minimum": with_model(min_throughput_rps=-1.0),
    "no latency": with_model(max_latency_ms=0.0),
    "pair with itself": replace(BASE, colocations=(Colocation(("encoder", "encoder")),)),
    "pair of one": replace(BASE, colocations=(Colocation(("encoder",)),)),
    "pair with a stranger": replace(BASE, colocations=(Colocation(("encoder", "x")),)),
    "negative bytes": replace(BASE, colocations=(Colocation(("encoder", "text check"), "soft", -1.0),)),
    "routed without bytes": replace(BASE, colocations=(Colocation(("encoder", "text check"), "routed"),)),
    "routed, negative bytes": replace(
        BASE, colocations=(Colocation(("encoder", "text check"), "routed", -1.0),)
    ),
    "routed alone": replace(BASE, colocations=(Colocation(("encoder",), "routed", 1.0),)),
    "routed to a stranger": replace(BASE, colocations=(Colocation(("encoder", "x"), "routed", 1.0),)),
    "routed to no stage": replace(
        BASE, colocations=(Colocation(("encoder", "text check/x"), "routed", 1.0),)
    ),
    "unknown mode": replace(BASE, colocations=(Colocation(("encoder", "text check"), "near"),)),  # type: ignore[arg-type]
    "unknown objective": replace(BASE, objective=Objective("best")),  # type: ignore[arg-type]
    "negative penalty": replace(BASE, objective=Objective(memory_violation_penalty=-1.0)),
    "negative separation": replace(BASE, objective=Objective(separation_weight=-1.0)),
    "unknown sharing": replace(BASE, sharing="some"),  # type: ignore[arg-type]
    "no link": replace(BASE, link_gb_per_s=0.0),
    "no tenants": replace(BASE, max_tenants_per_slice=0),
    "no time": replace(BASE, solver=SolverOptions(0.0)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name):
    with pytest.raises(InputFault) as caught:
        plan(BAD[name])
    assert caught.value.where and caught.value.problem and caught.value.remedy


def test_models_without_a_point_get_nothing_and_a_warning():
    lost = PlanModel("lost", (Variant("whole", (Stage("whole"),)),))
    outcome = plan(replace(BASE, models=(*BASE.models, lost)))
    assert outcome.status == "optimal"
    assert outcome.objective.sorted_normalised == pytest.approx((0.0, 7.8, 26.0, 71.0, 5333.0))
    assert any("lost" in warning for warning in outcome.warnings)
    assert plan(replace(BASE, models=(lost,))).status == "optimal"
    assert plan(replace(BASE, models=(replace(lost, min_throughput_rps=1.0),))).status == "infeasible"


def test_more_models_than_slices():
    models = tuple(simple(f"m{i}", {"1g.6gb": 1.0}) for i in range(7))
    outcome = plan(on_a30(*models))
    assert outcome.status == "optimal"
    assert outcome.objective.sorted_normalised == (0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("sharing", ["exclusive", "fractional"])
def test_huge_and_tiny_magnitudes_together(sharing):
    models = (
        simple("huge", {"2g.12gb": 4e11, "4g.24gb": 9e11}, min_throughput_rps=1e9),
        simple("tiny", {"2g.12gb": 3e-6, "4g.24gb": 7e-6}, min_throughput_rps=1e-6),
    )
    outcome = plan(on_a30(*models, sharing=sharing))  # type: ignore[arg-type]
    assert outcome.models[1].throughput_rps >= 3e-6 * (1 - 1e-6)
    assert outcome.models[0].throughput_rps >= 1e9 * (1 - 1e-6)


def test_same_request_same_outcome():
    for sharing in ("exclusive", "fractional"):
        request = replace(BASE, sharing=sharing)  # type: ignore[arg-type]
        first, second = plan(request), plan(request)
        assert first.status == "optimal"
        assert replace(first, statistics=second.statistics) == second


def test_ids_are_generated_around_given_ones():
    fleet = (FleetEntry(A30), FleetEntry(A30, id="gpu0"), FleetEntry(A30, count=2))
    outcome = plan(replace(BASE, gpus=fleet))
    assert [gpu.id for gpu in outcome.gpus] == ["gpu1", "gpu0", "gpu2", "gpu3"]


def test_hash_is_of_the_values():
    assert request_hash(BASE) == request_hash(published())
    assert request_hash(BASE) != request_hash(replace(BASE, sharing="fractional"))
    whole = replace(BASE, models=(replace(BASE.models[0], weight=1), *BASE.models[1:]))
    assert request_hash(whole) == request_hash(BASE)


def test_out_of_time_is_not_infeasible():
    models = tuple(
        simple(f"m{i}", {"1g.6gb": 1.0 + i / 7, "2g.12gb": 2.1 + i / 3, "4g.24gb": 4.7}) for i in range(12)
    )
    request = on_a30(*models, count=9, solver=SolverOptions(1e-6))
    outcome = plan(request)
    assert outcome.status in ("feasible", "optimal")
    assert outcome.objective.value is not None


def test_doors():
    rates = {
        m.name: {p.profile: p.throughput_rps for p in m.variants[0].stages[0].points} for m in BASE.models
    }
    names = list(rates)
    outcome = solve_leximin(names, [A30, A30], None, rates)
    assert outcome.objective.sorted_normalised == pytest.approx((7.8, 26.0, 71.0, 5333.0))
    layouts = [["2g.12gb", "2g.12gb"]]
    halves = solve_leximin(names, {"a": A30, "b": A30}, layouts, rates)
    assert {s.profile for gpu in halves.gpus for s in gpu.slices} == {"2g.12gb"}
    shared = solve_leximin_shared(
        names, {"a": A30, "b": A30}, {"a": layouts, A30: None}, rates,
        {"audio recognition": 11.0, "encoder": {"1g.6gb": 5.0}}, {"encoder": 100.0},
        [("audio recognition", "encoder", 1e6)], latency_ms={"encoder": 10.0}, time_limit_s=10.0,
    )  # fmt: skip
    assert shared.status in ("optimal", "feasible") and (shared.objective.value or 0) > 0
    sure = solve_leximin(
        names, [A30, A30], None, rates, low_rps={"encoder": {"1g.6gb": 5000.0}}, high_rps={"encoder": {}},
        plan_at="low",
    )  # fmt: skip
    assert sure.objective.sorted_normalised == pytest.approx((7.8, 26.0, 71.0, 5000.0))
    for bad in (
        {"low_rps": {names[0]: {"2g.12gb": 1e9}}}, {"low_rps": {names[0]: {"3g": 1.0}}}, {"plan_at": "high"},
        {"throughput": {"x": {}}}, {"throughput": {names[0]: {"3g": 1.0}}},
        {"latency_targets": {names[0]: 5.0}}, {"speed": 1},
    ):  # fmt: skip
        given = {"throughput": rates, **bad}
        with pytest.raises(InputFault):
            solve_leximin(names, [A30], None, **given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_planning_does_not_load_torch():
    code = "import json, sys, torchsplit_core.planning; print(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False
