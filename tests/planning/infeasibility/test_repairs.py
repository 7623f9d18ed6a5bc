"""Ways out of an infeasible request: each is possible, shown by a plan, and no smaller one of its kind is."""

from dataclasses import replace

import pytest

from tests.support.planning.requests import A30, on_a30, whole_model
from torchsplit_core.planning import plan
from torchsplit_core.planning.infeasibility.repairs import (
    MAX_ADDED_GPUS,
    Repair,
    find_repairs,
    repair_requests,
    scale_request,
    with_scaled_minima,
)
from torchsplit_core.planning.request.edit import with_more_gpus
from torchsplit_core.planning.request.equivalence import equivalence_hash
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    Objective,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
)


def model(name: str, least: float | None) -> PlanModel:
    points = (Point(A30, "1g.6gb", 1, 10.0, 10.0), Point(A30, "4g.24gb", 1, 35.0, 5.0))
    return whole_model(name, points, demand_rps=10.0, min_throughput_rps=least)


def request(*least: float | None, count: int = 1) -> PlanRequest:
    models = tuple(model(f"m{number}", minimum) for number, minimum in enumerate(least))
    return on_a30(*models, count=count, objective=Objective("min_gpus"))


def answered(asked: PlanRequest) -> tuple[PlanOutcome, tuple[Repair, ...], list[PlanRequest]]:
    """Its outcome, its ways out once every question is answered, and the questions."""
    outcome, known, asking = plan(asked), {}, []

    def answer(one):
        return known.get(equivalence_hash(one))

    for question in repair_requests(asked, outcome, answer):
        asking.append(question)
        known[equivalence_hash(question)] = plan(question, reasons=False)
    return outcome, find_repairs(asked, outcome, answer), asking


def test_each_kind_of_way_out_is_least_and_has_a_plan():
    # One GPU serves 40 requests/s on four slices: 30 + 25 need a second one, or a scale of 40 / 50 in whole slices.
    asked = request(30.0, 20.0)
    outcome, ways, _ = answered(asked)
    assert outcome.status == "infeasible"
    assert [way.kind for way in ways] == ["relaxation", "gpus", "scale"]
    for way in ways:
        assert way.plan.gpus and not list(violations(way.request, replace(way.plan)))
    relaxed, larger, smaller = ways
    assert sum(c.old - c.new for c in outcome.least_relaxation or ()) == pytest.approx(10.0)
    assert (larger.added_gpus, larger.gpu_type) == (1, A30) and larger.request.gpus[0].count == 2
    # Minima of 30 s and 20 s on whole slices of 10: three and one, or two and two.
    assert smaller.scale == pytest.approx(2 / 3, abs=0.001) and smaller.scale <= 2 / 3
    assert [m.min_throughput_rps for m in smaller.request.models] == pytest.approx([20.0, 13.3333], abs=0.05)
    assert plan(with_scaled_minima(asked, smaller.scale + 0.002), reasons=False).status == "infeasible"
    assert relaxed.request != asked


def test_more_gpus_are_tried_until_they_suffice():
    asked = request(40.0, 40.0, 40.0)
    _, ways, asking = answered(asked)
    way = next(way for way in ways if way.kind == "gpus")
    assert way.added_gpus == 2
    assert plan(with_more_gpus(asked, 0, 1) or asked, reasons=False).status == "infeasible"
    assert sum(1 for one in asking if one.gpus != asked.gpus) == 2
    _, ways, _ = answered(request(*[40.0] * (MAX_ADDED_GPUS + 3)))
    assert not [way for way in ways if way.kind == "gpus"]


def test_a_gpu_with_an_id_gets_another_entry_beside_it():
    asked = replace(request(30.0, 20.0), gpus=(FleetEntry(A30, "mine", node="n1", cost=2.0),))
    larger = with_more_gpus(asked, 0, 1)
    assert larger is not None
    assert larger.gpus == (asked.gpus[0], FleetEntry(A30, None, 1, None, 2.0, "n1"))


def test_without_minima_there_is_nothing_to_scale():
    pair = (Colocation(("m0", "m1"), "hard"),)
    assert scale_request(replace(request(None, None), colocations=pair)) is None
    question = scale_request(replace(request(30.0, None), colocations=pair))
    assert question is not None and [m.name for m in question.models] == ["m0"] and question.colocations == ()


def limited(name: str, limit_ms: float | None, least: float) -> PlanModel:
    return replace(model(name, least), max_latency_ms=limit_ms)


def test_a_limit_that_is_far_too_short_is_raised_before_its_minimum_is_given_up():
    # The quickest point takes 5 ms: with 1 ms the least change of figures is to serve nothing.
    asked = on_a30(
        limited("m0", 1.0, 30.0), limited("m1", None, 5.0), count=2, objective=Objective("min_gpus")
    )
    outcome, ways, asking = answered(asked)
    assert outcome.status == "infeasible"
    (change,) = outcome.least_relaxation or ()
    assert (change.model, change.new) == ("m0", 0.0)
    assert [way.kind for way in ways][:2] == ["limits", "relaxation"]
    assert (ways[0].models, ways[0].scale) == (("m0",), 5.0)
    assert [each.max_latency_ms for each in ways[0].request.models] == [5.0, None]
    assert not list(violations(ways[0].request, ways[0].plan)) and ways[0].plan.gpus
    raised = [each.models[0].max_latency_ms for each in asking if each.models[0].max_latency_ms != 1.0]
    assert raised == [1.25, 1.5, 2.0, 3.0, 5.0]


def test_no_limit_is_raised_where_the_least_change_raises_one_already():
    asked = on_a30(limited("m0", 9.0, 8.0), limited("m1", 9.0, 8.0), count=1, objective=Objective("min_gpus"))
    outcome, ways, _ = answered(asked)
    assert outcome.status == "infeasible"
    assert any(change.demand == "max_latency_ms" for change in outcome.least_relaxation or ())
    assert "limits" not in [way.kind for way in ways]
