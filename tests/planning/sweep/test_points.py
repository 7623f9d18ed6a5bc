"""Sweeps: the requests of a curve, what its points prove for each other, and their plans side by side."""

import multiprocessing
import os
import time
from dataclasses import replace

import pytest

from tests.support.planning.requests import on_a30, whole_model
from torchsplit_core.planning import plan
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.sweep import workers as running
from torchsplit_core.planning.sweep.points import (
    SweepPoint,
    SweepRequest,
    describe_point,
    present_value,
    request_at,
    spread_values,
    sweep_points,
    sweep_requests,
    undominated_points,
    visiting_order,
)
from torchsplit_core.planning.sweep.workers import plan_all, point_time_limit_s
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    InternalFault,
    Objective,
    ObjectiveValue,
    PlanModel,
    PlannedGpu,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
    SolverOptions,
)

A30 = "A30-24GB"
NOTHING = PlanStatistics(0.0, 0.0, 0.0, "none")


def model(name: str, rate: float, **more: float) -> PlanModel:
    sizes = (("1g.6gb", 1), ("2g.12gb", 1.8), ("4g.24gb", 3))
    points = tuple(Point(A30, profile, 1, rate * size, 10.0) for profile, size in sizes)
    return whole_model(name, points, **more)  # type: ignore[arg-type]


def request(kind: str = "leximin", count: int = 2, **more: float) -> PlanRequest:
    models = (model("a", 10.0, demand_rps=20.0, **more), model("b", 4.0, demand_rps=8.0))
    return on_a30(*models, count=count, objective=Objective(kind))  # type: ignore[arg-type]


def solved(asked: PlanRequest, what: SweepRequest) -> tuple[SweepPoint, ...]:
    found = {}
    requests = sweep_requests(asked, what)
    plan_all([one for _, one in requests], 20.0, lambda at, out: found.update({requests[at][0]: out}))
    return sweep_points(asked, what, found)


def made(
    value: float | None, bound: float | None, used: int = 1, rate: float = 1.0, proven: bool = False
) -> PlanOutcome:
    """A plan that reaches `value` and is bounded by `bound`; without a value one that was not found in time."""
    if value is None:
        return no_plan(request(), "timeout", NOTHING)
    goal = ObjectiveValue("leximin", value, (value,), bound, None, int(proven))
    gpus = tuple(PlannedGpu(str(n), A30, True) for n in range(used))
    models = tuple(PlannedModel(name, "whole", rate, value, 1.0) for name in "ab")
    return PlanOutcome("", "optimal" if proven else "feasible", goal, gpus, models, NOTHING)


def test_a_sweep_of_gpus_is_the_plan_of_each_fleet_and_never_falls():
    asked = request()
    what = SweepRequest("gpus", A30, (1.0, 2.0, 3.0, 4.0))
    points = solved(asked, what)
    assert [point.status for point in points] == ["optimal"] * 4
    for point, (_, one) in zip(points, sweep_requests(asked, what), strict=True):
        verify(one, point.outcome)
        same = plan(one)
        assert same.objective.sorted_normalised == pytest.approx(point.outcome.objective.sorted_normalised)
        assert point.least == point.least_as_asked == pytest.approx(same.objective.value)
        assert point.total_rps == pytest.approx(sum(m.throughput_rps for m in same.models))
        assert point.gpus_used == sum(gpu.used for gpu in same.gpus) <= point.value
        assert point.proven and point.gap == 0 and point.better_at is None
    levels = [point.objective or 0.0 for point in points]
    assert levels == sorted(levels) and levels[0] < levels[-1]


def test_a_larger_demand_or_weight_never_serves_a_larger_part():
    for parameter in ("demand", "weight"):
        asked = request()
        points = solved(asked, SweepRequest(parameter, "a", (1.0, 5.0, 40.0)))
        levels = [point.objective or 0.0 for point in points]
        assert levels == sorted(levels, reverse=True) and levels[0] > levels[-1]
        rates = {m.name: m.throughput_rps for m in points[0].outcome.models}
        assert points[0].least_as_asked == pytest.approx(min(rates["a"] / 20, rates["b"] / 8))


def test_a_minimum_that_the_fleet_cannot_give_says_why():
    points = solved(request(count=1), SweepRequest("min_throughput", "a", (0.0, 20.0, 1000.0)))
    assert [point.status for point in points] == ["optimal", "optimal", "infeasible"]
    assert points[2].objective is None and points[2].gpus_used is None and not points[2].proven
    assert "a at least 1000" in describe_point(points[2]) and "would help" in describe_point(points[2])
    assert describe_point(points[0]) == ""


def test_fewest_gpus_over_a_minimum_never_get_fewer():
    points = solved(
        request("min_gpus", 4, min_throughput_rps=1.0),
        SweepRequest("min_throughput", "a", (10.0, 70.0, 130.0)),
    )
    assert [point.objective for point in points] == [1.0, 2.0, 4.0]


def test_a_bound_holds_wherever_monotony_carries_it():
    what = SweepRequest("gpus", A30, (1.0, 2.0, 3.0))
    points = sweep_points(
        request(), what, {1.0: made(2.0, 9.0), 2.0: made(4.0, 4.0, proven=True), 3.0: made(3.0, 12.0)}
    )
    assert (points[0].bound, points[0].bound_from, points[0].gap) == (4.0, 2.0, 0.5)
    assert (points[1].bound, points[1].bound_from, points[1].proven) == (4.0, None, True)
    # Fewer GPUs bound nothing from above, but their plan stands here too.
    assert (points[2].bound, points[2].bound_from, points[2].better_at) == (12.0, None, 2.0)
    assert "the plan at 2 also stands here" in describe_point(points[2])
    downward = SweepRequest("demand", "a", (1.0, 2.0))
    first, second = sweep_points(request(), downward, {1.0: made(5.0, 6.0), 2.0: made(4.0, 8.0)})
    assert (first.bound, first.bound_from) == (6.0, None) and (second.bound, second.bound_from) == (6.0, 1.0)


def test_a_lower_bound_of_fewest_gpus_is_carried_the_other_way():
    what = SweepRequest("min_throughput", "a", (1.0, 2.0, 3.0))
    points = sweep_points(
        request("min_gpus"),
        what,
        {1.0: made(3.0, 3.0, proven=True), 2.0: made(3.0, 1.0), 3.0: made(5.0, 1.0)},
    )
    assert points[1].proven and points[1].bound_from == 1.0
    assert (points[2].bound, points[2].gap) == (3.0, 0.4)


def test_a_point_that_another_proves_impossible_says_which():
    what = SweepRequest("gpus", A30, (1.0, 2.0, 3.0))
    no = no_plan(request(), "infeasible", NOTHING)
    points = sweep_points(request(), what, {1.0: made(None, None), 2.0: no, 3.0: made(None, None)})
    assert [point.status for point in points] == ["infeasible", "infeasible", "timeout"]
    assert describe_point(points[1]).startswith("impossible; which demands")
    assert describe_point(
        points[0]
    ) == "impossible, as it is at 2 already" and "no plan found in time" in describe_point(points[2])


def test_weighted_sums_carry_bounds_by_weight_upward_only():
    what = SweepRequest("weight", "a", (1.0, 2.0))
    first, second = sweep_points(request("weighted_sum"), what, {1.0: made(3.0, 9.0), 2.0: made(4.0, 6.0)})
    assert (first.bound, second.bound) == (6.0, 6.0)
    assert second.bound_from is None and first.bound_from == 2.0


def test_the_front_has_what_no_other_beats():
    what = SweepRequest("gpus", A30, (1.0, 2.0, 3.0, 4.0))
    plans = {
        1.0: made(2.0, None, 1, 8.0), 2.0: made(2.0, None, 2, 16.0),
        3.0: made(3.0, None, 3, 12.0), 4.0: no_plan(request(), "timeout", NOTHING),
    }  # fmt: skip
    assert [point.value for point in undominated_points(sweep_points(request(), what, plans))] == [1.0, 2.0]
    assert undominated_points(()) == ()


def test_a_fleet_grows_and_shrinks_in_the_order_of_its_entries():
    entries = (
        FleetEntry(A30, id="mine"),
        FleetEntry("A100-80GB"),
        FleetEntry(A30, count=2, layouts=(("4g.24gb",),)),
    )
    asked = replace(request(), gpus=entries)

    def fleet(count):
        return request_at(asked, SweepRequest("gpus", A30, (count,)), count).gpus

    assert fleet(0) == entries[1:2] and fleet(1) == entries[:2]
    assert fleet(2) == (*entries[:2], replace(entries[2], count=1))
    assert fleet(5) == (*entries[:2], replace(entries[2], count=4))
    named = replace(asked, gpus=entries[:1])
    grown = request_at(named, SweepRequest("gpus", A30, (3.0,)), 3.0).gpus
    assert grown == (entries[0], FleetEntry(A30, count=2))
    assert present_value(asked, "gpus", A30) == 3 and present_value(asked, "weight", "a") == 1.0
    assert present_value(asked, "min_throughput", "a") is None


@pytest.mark.parametrize(("parameter", "target", "values", "said"), [
    ("gpus", A30, (0.0, 1.0), "gpus: is empty"),
    ("gpus", A30, (1.0, 5000.0), "at most 4096"),
    ("gpus", A30, (1.5,), "1.5 is not a whole number of GPUs"),
    ("gpus", "H200-141GB", (1.0,), "H200-141GB is not in the fleet"),
    ("gpus", "no such GPU", (1.0,), "no such GPU"),
    ("demand", "nobody", (1.0,), "unknown model 'nobody'. Known models: "),
    ("demand", "a", (0.0, 1.0), "demand_rps"),
    ("weight", "a", (float("nan"),), "value nan is not a finite number"),
    ("weight", "a", (-1.0,), "value -1 is below 0"),
    ("weight", "a", (2.0, 1.0), "1 comes after 2"),
    ("weight", "a", (1.0, 1.0), "1 comes after 1"),
    ("weight", "a", (), "has 0 values, not 1 to 64"),
    ("weight", "a", tuple(map(float, range(1, 1001))), "has 1000 values, not 1 to 64"),
    ("colour", "a", (1.0,), "unknown parameter 'colour'"),
])  # fmt: skip
def test_senseless_sweeps_are_refused(parameter, target, values, said):
    with pytest.raises(InputFault, match=said):
        sweep_requests(request(), SweepRequest(parameter, target, values))  # type: ignore[arg-type]


def test_ranges_are_spread_and_checked():
    assert spread_values("gpus", 1, 8, 8) == tuple(map(float, range(1, 9)))
    assert spread_values("gpus", 1, 3, 8) == (1.0, 2.0, 3.0) and spread_values("demand", 5, 5, 4) == (5.0,)
    assert spread_values("weight", 0.5, 2, 4) == (0.5, 1.0, 1.5, 2.0)
    for start, stop, steps in (
        (2, 1, 3), (float("nan"), 1, 3), (1, float("inf"), 3), (1, 2, 0), (1, 2, 1000),
    ):  # fmt: skip
        with pytest.raises(InputFault, match="sweep of demand"):
            spread_values("demand", start, stop, steps)


def test_the_ends_come_first_and_every_point_once():
    assert visiting_order(9) == (0, 8, 4, 2, 6, 1, 3, 5, 7)
    assert all(sorted(visiting_order(count)) == list(range(count)) for count in range(66))


def test_the_time_is_shared_out():
    asked = replace(request(), solver=SolverOptions(10.0))
    assert (
        point_time_limit_s(asked, 60.0, 24),
        point_time_limit_s(asked, 60.0, 2),
        point_time_limit_s(asked, 1.0, 64),
    ) == (5.0, 10.0, 0.5)


def test_a_process_that_dies_costs_its_point_alone(monkeypatch):
    real = running._plan_request

    def planned(asked, limit_s):
        if asked.gpus[0].count == 2:
            os._exit(1)
        return real(asked, limit_s)

    monkeypatch.setattr(running, "_plan_request", planned)
    found = {point.value: point for point in solved(request(), SweepRequest("gpus", A30, (1.0, 2.0, 3.0)))}
    assert [found[n].status for n in (1.0, 2.0, 3.0)] == ["optimal", "timeout", "optimal"]
    assert "ended without an answer" in describe_point(found[2.0])


def test_a_process_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(running, "_plan_request", lambda asked, limit_s: time.sleep(600))
    monkeypatch.setattr(running, "GRACE_S", 0.1)
    found = []
    plan_all([request()], 0.05, lambda _, outcome: found.append(outcome))
    assert found[0].status == "timeout" and "did not end in time" in found[0].warnings[0]


def test_a_fault_of_our_own_is_raised_and_leaves_no_process(monkeypatch):
    def planned(asked, limit_s):
        raise InternalFault("the plan fails its check")

    monkeypatch.setattr(running, "_plan_request", planned)
    with pytest.raises(InternalFault, match="fails its check"):
        plan_all([request()] * 3, 1.0, lambda _, __: None)
    assert not multiprocessing.active_children()
