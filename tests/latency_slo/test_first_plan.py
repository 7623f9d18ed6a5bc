"""A first plan where the time limit leaves no time for any: its limits, its bound, and what it says of itself."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.latency_slo.test_slo_planner import A30, SIZES, every_plan, model, planned, request
from tests.support.planning.requests import on_a30
from torchsplit_core import workflow
from torchsplit_core.hardware import gpu_type
from torchsplit_core.latency_slo import derating, slice_sets, slo_planner, slo_search
from torchsplit_core.latency_slo.isolated_capacity import max_rps_within
from torchsplit_core.latency_slo.relaxation import relax, reserve, without_limits
from torchsplit_core.latency_slo.slo_check import (
    QUICK_RUNS,
    RUNS,
    SHORT_QUICK_REQUESTS,
    SHORT_REQUESTS,
    SloChecker,
    SloResult,
)
from torchsplit_core.latency_slo.slo_planner import verify_with_slo
from torchsplit_core.latency_slo.slo_search import RESERVES, SloSearch
from torchsplit_core.planning import violations
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.planner import plan
from torchsplit_core.values import (
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    SolverOptions,
    ignore_progress,
    tenants_on,
)

SHORT, LONG = SolverOptions(0.1), SolverOptions(20.0)


class Clock:
    """A clock that moves on at every look: by a thousand seconds, there is no time for anything timed."""

    def __init__(self, tick_s: float) -> None:
        self.now, self.tick_s = 0.0, tick_s

    def perf_counter(self) -> float:
        """Seconds, more at every call."""
        self.now += self.tick_s
        return self.now


def clocked(monkeypatch: pytest.MonkeyPatch, tick_s: float) -> None:
    """Every part of the search looks at one such clock."""
    clock = Clock(tick_s)
    for module in (slo_planner, slo_search, slice_sets, derating):
        monkeypatch.setattr(module, "time", clock)


def busy(kind: str = "min_gpus", sharing: str = "exclusive") -> PlanRequest:
    """Models whose plan without queueing does not keep their limits."""
    return request(model("a", 150.0, 60.0), model("b", 60.0, 14.0), kind=kind, sharing=sharing)


@pytest.mark.parametrize("sharing", ["exclusive", "fractional"])
@pytest.mark.parametrize("kind", ["min_gpus", "leximin"])
def test_a_plan_and_its_bound_without_any_time(kind: str, sharing: str, monkeypatch: pytest.MonkeyPatch):
    clocked(monkeypatch, 1e3)
    # The plan without queueing is refused, or nothing would be tried.
    monkeypatch.setattr(SloSearch, "_fleet_of", _nothing_first(SloSearch._fleet_of))
    asked = replace(busy(kind, sharing), solver=SHORT)
    outcome = workflow.plan(asked)
    assert outcome.gpus and outcome.statistics.details["plans_tried"]
    assert not [*violations(asked, outcome)]
    verify_with_slo(asked, outcome)
    value, bound = outcome.objective.value, outcome.objective.bound
    assert value is not None and bound is not None
    assert bound <= value if kind == "min_gpus" else bound >= value


@pytest.mark.slow
def test_the_bound_holds_for_the_best_plan(monkeypatch: pytest.MonkeyPatch):
    best = planned(busy()).objective
    clocked(monkeypatch, 1e3)
    quick = workflow.plan(replace(busy(), solver=SHORT)).objective
    assert quick.bound is not None and best.value is not None and quick.value is not None
    assert quick.bound <= best.value <= quick.value


def test_models_that_fit_by_shares_alone_have_a_plan_without_any_time(monkeypatch: pytest.MonkeyPatch):
    clocked(monkeypatch, 1e3)
    monkeypatch.setattr(SloSearch, "_fleet_of", _nothing_first(SloSearch._fleet_of))
    models = model("a", 60.0, 80.0), model("b", 60.0, 28.0)
    whole = request(*models, kind="leximin", sharing="fractional")
    asked = replace(whole, gpus=on_a30(*models, layouts=(("4g.24gb",),)).gpus, solver=SHORT)
    outcome = workflow.plan(asked)
    assert {tenant.model for *_, tenant in tenants_on(outcome.gpus)} == {"a", "b"}
    assert not [*violations(asked, outcome)]


def test_a_fair_objective_whose_reserves_have_no_plan_gets_sets_of_slices(monkeypatch: pytest.MonkeyPatch):
    clocked(monkeypatch, 1e-4)
    monkeypatch.setattr(SloSearch, "_fleet_of", _nothing_first(SloSearch._fleet_of))
    monkeypatch.setattr(slo_search, "RESERVES", ((1.0, 1e6),))
    monkeypatch.setattr(SloSearch, "_maximize_worst", lambda self, bound: iter(()))
    asked = replace(busy("leximin"), solver=SHORT)
    outcome = workflow.plan(asked)
    assert outcome.gpus and not [*violations(asked, outcome)]


def _nothing_first(fleet_of):
    """`fleet_of` that has no GPU in use the first time."""
    calls = []

    def wrapped(self, bound):
        calls.append(bound)
        return self._on_whole_fleet(()) if len(calls) == 1 else fleet_of(self, bound)

    return wrapped


@pytest.mark.parametrize("seconds", [0.01, 60.0])
def test_the_plan_that_bounds_gets_a_part_of_the_time_and_enough_of_it(
    seconds: float, monkeypatch: pytest.MonkeyPatch
):
    limits: list[float] = []

    def recorded(relaxed: PlanRequest) -> PlanOutcome:
        limits.append(relaxed.solver.time_limit_s)
        return plan(relaxed)

    monkeypatch.setattr(slo_planner, "plan", recorded)
    workflow.plan(replace(request(model("a", 150.0, 60.0)), solver=SolverOptions(seconds)))
    assert limits == [pytest.approx(max(0.35 * seconds, 0.4))]


def test_sets_of_slices_are_sought_for_a_first_plan_beyond_the_limit(monkeypatch: pytest.MonkeyPatch):
    clocked(monkeypatch, 1e-4)
    monkeypatch.setattr(SloSearch, "_plan_first", lambda self: None)
    asked = replace(busy(), solver=SolverOptions(1e-3))
    outcome = workflow.plan(asked)
    assert outcome.gpus and not [*violations(asked, outcome)]


def test_models_that_fail_get_larger_reserves_and_the_others_do_not(monkeypatch: pytest.MonkeyPatch):
    """`a` is refused until it has the fifth reserve, and `b` is doubtful once."""
    asked = replace(busy(), solver=SHORT)
    requests: list[PlanRequest] = []

    class Judge(SloChecker):
        def check(self, outcome: PlanOutcome) -> SloResult:
            number = len(requests)
            return SloResult({}, ("a",) if number < 4 else (), ("a", "b") if number == 1 else ())

    monkeypatch.setattr(slo_search, "plan", lambda derived, **_: requests.append(derived) or plan(derived))
    search = SloSearch(asked, frozenset((A30,)), Judge(asked), 0.0, ignore_progress)
    search._plan_first()
    assert search.best is not None
    expected = [reserve(asked, {"a": RESERVES[step], "b": RESERVES[min(step, 2)]}) for step in (1, 2, 3, 4)]
    assert [derived.models for derived in requests] == [derived.models for derived in expected]


def test_a_reserve_leaves_a_model_its_quickest_batches():
    slow = model("a", 1.0, 4.0)
    derived = reserve(request(slow), {"a": (0.1, 1.0)}).models[0]
    quickest = min(point.latency_ms for point in slow.points)
    assert derived.max_latency_ms is not None and quickest <= derived.max_latency_ms < 2 * quickest
    assert reserve(request(slow), {"a": (0.9, 1.0)}).models[0].max_latency_ms == pytest.approx(3.6)


def holding(asked: PlanRequest) -> PlanOutcome:
    """Four whole GPUs of one model."""
    plain = without_limits(asked)
    (gpus,) = (
        gpus
        for gpus in every_plan(replace(asked, models=asked.models[:1]), 4)
        if all([item.profile for item in gpu.slices] == ["4g.24gb"] for gpu in gpus)
    )
    return unproven_outcome(plain, gpus, PlanStatistics(0.0, 0.0, 0.0, "none"))


def test_a_short_limit_simulates_fewer_requests_of_models_that_are_clearly_within_theirs():
    asked = request(model("a", 2500.0, 60.0))
    brief, full = SloChecker(replace(asked, solver=SHORT)), SloChecker(replace(asked, solver=LONG))
    (of_brief,), (of_full,) = (judge.check(holding(asked)).responses.values() for judge in (brief, full))
    assert of_brief.short and not of_full.short
    assert brief.simulated == QUICK_RUNS * SHORT_QUICK_REQUESTS + RUNS * SHORT_REQUESTS < full.simulated
    assert of_brief.response_ms.p95 == pytest.approx(of_full.response_ms.p95, rel=0.05)
    assert of_full.response_ms.p95 != of_brief.response_ms.p95


def test_a_model_near_its_limit_is_simulated_in_full_however_short_the_limit():
    asked = request(model("a", 2500.0, 60.0))
    p95 = SloChecker(asked).check(holding(asked)).responses["a"].response_ms.p95
    near = request(model("a", 2500.0, 1.005 * p95))
    brief, full = SloChecker(replace(near, solver=SHORT)), SloChecker(replace(near, solver=LONG))
    results = [judge.check(holding(near)).responses for judge in (brief, full)]
    assert results[0] == results[1] and not results[0]["a"].short
    beyond = request(model("a", 2500.0, 0.98 * p95))
    assert SloChecker(replace(beyond, solver=SHORT)).check(holding(beyond)).failing == ("a",)


def test_a_plan_of_short_simulations_says_so():
    asked = request(model("a", 150.0, 60.0), model("b", 60.0, 40.0))
    outcome = workflow.plan(replace(asked, solver=SHORT))
    (warning,) = (text for text in outcome.warnings if "simulated requests" in text)
    assert "5 × 10,000" in warning and "0.1 s" in warning
    assert not any("simulated requests" in text for text in planned(asked).warnings)


def test_what_a_point_carries_is_that_of_every_batch_size():
    draw = random.Random(3)
    for _ in range(2000):
        sizes = sorted(draw.sample((1, 2, 3, 4, 8, 16, 32, 64), draw.randint(1, 6)))
        times, last = {}, 0.1
        for size in sizes:
            last += draw.choice((0.0, 1.0, 3.0, 7.0)) * draw.random()
            times[size] = last
        every = dict.fromkeys(range(1, sizes[0] + 1), times[sizes[0]])
        for low, high in pairwise(sizes):
            for size in range(low + 1, high + 1):
                every[size] = times[low] + (times[high] - times[low]) / (high - low) * (size - low)
        limit = draw.choice((draw.uniform(0.0, 1.2 * last), draw.choice([*every.values()]), float("inf")))
        most = max((2000 * size / time for size, time in every.items() if time <= limit), default=0.0)
        assert max_rps_within(times, limit, 2) == pytest.approx(most, rel=1e-9), (times, limit)


def test_the_relaxation_takes_the_multiplier_that_counts_the_best_slice_least():
    """E = max(A, (1 + a) G) / (1 + q a) of every multiplier, from its formula."""
    asked = request(model("a", 150.0, 14.0))
    (relaxed,) = relax(asked, frozenset((A30,))).models
    (spec,) = asked.models
    gib = {profile: gpu_type(A30).profile(profile).memory_gib or 0.0 for profile in SIZES}
    tables = {
        point: {
            other.batch_size: 1000 * other.batch_size / other.throughput_rps
            for other in spec.points
            if other.profile == point.profile and other.batch_size <= point.batch_size
        }
        for point in spec.points
    }

    def counted(a: float) -> dict[str, float]:
        rates: dict[str, float] = {}
        for point, times in tables.items():
            most, good = (max_rps_within(times, limit, 1) for limit in (float("inf"), 14.0))
            rate = max(most, (1 + a) * good) / (1 + 0.95 * a)
            rates[point.profile] = max(rates.get(point.profile, 0.0), rate / gib[point.profile])
        return rates

    least = min(max(counted(a).values()) for a in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0))
    best = max(point.throughput_rps / gib[point.profile] for point in relaxed.points)
    assert best == pytest.approx(least)
    assert relaxed.min_throughput_rps == 150.0
