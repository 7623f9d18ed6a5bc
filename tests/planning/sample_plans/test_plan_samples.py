"""Plans that hold demand samples, against a look at every plan, and what their outcomes say."""

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.planning.edits import with_each_model
from tests.support.planning.oracle import best_plan
from tests.support.planning.requests import on_a30, simple
from tests.support.planning.sampled_requests import sampled
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.baselines.baseline_plans import build_baselines
from torchsplit_core.planning.outcome.held_samples import held_share
from torchsplit_core.planning.request.objective import required_samples
from torchsplit_core.planning.sample_plans.holdout import (
    held_of_others,
    held_out_curve,
    planned_samples,
)
from torchsplit_core.values import (
    Colocation,
    HeldSamples,
    InputFault,
    Objective,
    PlanOutcome,
    PlanRequest,
    SolverOptions,
)

RATES = {"1g.6gb": 10.0, "2g.12gb": 20.0, "4g.24gb": 40.0}


def two(first: tuple[float, ...], second: tuple[float, ...], **options: object) -> PlanRequest:
    """Two models of 10 requests/s a slice of an A30, four slices a GPU."""
    models = (
        simple("a", RATES, demand_samples=first, demand_rps=10.0),
        simple("b", RATES, demand_samples=second, demand_rps=10.0),
    )
    return on_a30(*models, **{"count": 2, **options})


def held_by_hand(request: PlanRequest, outcome: PlanOutcome) -> int:
    """Recounted in exact fractions from the tenants, which on these A30 run whole models."""
    rates: dict[str, Fraction] = {}
    for gpu in outcome.gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                rates[tenant.model] = rates.get(tenant.model, Fraction(0)) + Fraction(tenant.throughput_rps)
    moments = zip(*(model.demand_samples for model in request.models), strict=True)
    return sum(
        all(
            Fraction(entry) <= rates.get(model.name, Fraction(0))
            for entry, model in zip(moment, request.models, strict=True)
        )
        for moment in moments
    )


@pytest.mark.parametrize("kind", ["min_gpus", "attainment"])
@repeated("block", range(10))
def test_equal_to_every_plan_looked_at(kind, block):
    planned = 0
    for seed in range(block * 10, block * 10 + 10):
        request = sampled(seed, kind)
        expected, outcome = best_plan(request), plan(request)
        assert not list(violations(request, outcome)), (kind, seed)
        if expected is None:
            assert outcome.status == "infeasible", (kind, seed)
            continue
        planned += 1
        assert outcome.objective.proven_levels == 1 and outcome.objective.gap == 0.0, (kind, seed)
        value = outcome.objective.value or 0.0
        assert (-value if kind == "min_gpus" else value) == pytest.approx(expected[0][0], rel=1e-6), (
            kind,
            seed,
        )
        if kind == "attainment":
            assert outcome.samples is not None and outcome.samples.held == round(
                value * outcome.samples.count
            )
    assert planned >= 1


@repeated("block", range(4))
def test_shares_of_slices_hold_no_less_than_whole_ones(block):
    compared = 0
    for seed in range(block * 5, block * 5 + 5):
        request = replace(sampled(seed, "attainment", "fractional"), solver=SolverOptions(6.0))
        outcome = plan(request)
        assert not list(violations(request, outcome)), seed
        whole = best_plan(replace(request, sharing="exclusive"))
        if outcome.objective.value is None:
            assert whole is None or outcome.status == "timeout", seed
            continue
        bound = outcome.objective.bound
        assert whole is None or bound is None or bound >= whole[0][0] - 1e-9, seed
        if whole is not None:
            compared += 1
            assert outcome.objective.value >= whole[0][0] - 1e-9, seed
    assert compared


def test_models_that_peak_apart_need_less_than_their_peaks():
    apart = two((40, 10, 40, 10), (10, 40, 10, 40), objective=Objective("min_gpus", attainment=0.5))
    outcome = plan(apart)
    assert outcome.status == "optimal" and outcome.objective.value == 2
    # With one of the moments each, 5 slices are enough: 2 GPUs; both together need 8 slices, 2 GPUs as well.
    together = two((40, 10), (40, 10), count=1, objective=Objective("attainment"))
    outcome = plan(together)
    assert (outcome.objective.value, outcome.objective.bound, outcome.status) == (0.5, 0.5, "optimal")
    assert outcome.samples == HeldSamples(2, 1, 0.5, None, outcome.samples and outcome.samples.worst_model)
    assert held_by_hand(together, outcome) == 1


def test_a_sample_within_another_is_held_with_it():
    request = two((30, 10, 20, 90), (10, 10, 5, 90), count=1, objective=Objective("attainment"))
    outcome = plan(request)
    assert outcome.samples is not None and outcome.samples.held == 3
    assert held_by_hand(request, outcome) == 3


def test_the_number_asked_for_is_rounded_up():
    request = two((1.0,) * 20, (1.0,) * 20)
    for share, count in ((0.95, 19), (0.951, 20), (1e-6, 1), (1.0, 20), (0.05, 1)):
        objective = Objective("min_gpus", attainment=share)
        assert required_samples(replace(request, objective=objective)) == count
    assert required_samples(replace(request, objective=Objective("attainment"))) is None


def test_the_share_stands_for_the_minima():
    asked = two((5.0, 40.0), (5.0, 40.0), objective=Objective("min_gpus", attainment=0.5))
    request = with_each_model(asked, min_throughput_rps=500.0)
    outcome = plan(request)
    assert outcome.objective.value == 1 and outcome.status == "optimal"
    assert any("min_throughput_rps is not used" in warning for warning in outcome.warnings)
    # The largest share has them as limits beside it.
    largest = replace(request, objective=Objective("attainment"))
    assert plan(largest).status == "infeasible"
    few = with_each_model(largest, min_throughput_rps=15.0)
    models = {model.name: model.throughput_rps for model in plan(few).models}
    assert min(models.values()) >= 15


def test_what_cannot_be_held_names_what_can():
    request = two((10, 20, 900), (10, 20, 10), objective=Objective("min_gpus", attainment=1.0))
    outcome = plan(request)
    assert outcome.status == "infeasible" and not outcome.gpus
    assert outcome.samples == HeldSamples(3, 2, 2 / 3, 3, None, 2)
    (conflict,) = outcome.conflicts
    assert conflict.demands[0].demand == "attainment" and conflict.demands[0].models == ("a", "b")
    assert "the most is 2 (66.7%)" in conflict.message
    quick = plan(request, reasons=False)
    assert quick.status == "infeasible" and quick.conflicts == () and quick.samples is None


def test_minima_that_cannot_hold_are_named_with_what_would():
    model = replace(
        simple("a", {"4g.24gb": 20.0}), demand_rps=10.0, min_throughput_rps=50.0, demand_samples=(5.0, 10.0)
    )
    outcome = plan(on_a30(model, objective=Objective("attainment")))
    assert outcome.status == "infeasible"
    (conflict,) = outcome.conflicts
    assert [(item.demand, item.model) for item in conflict.demands] == [("min_throughput_rps", "a")]
    (change,) = outcome.least_relaxation or ()
    assert (change.model, change.old, change.new) == ("a", 50.0, pytest.approx(20.0))


def test_samples_are_held_without_any_one_gpu():
    """Two GPUs each carry what is asked once one may be lost: a sample of 20 and 20 fills one GPU alone."""
    objective = Objective("min_gpus", survives=1, attainment=0.5)
    request = two((20, 40), (20, 40), count=3, objective=objective)
    outcome = plan(request)
    assert outcome.status == "optimal" and outcome.objective.value == 2
    assert plan(replace(request, objective=replace(objective, survives=0))).objective.value == 1
    largest = plan(replace(request, objective=Objective("attainment", survives=1)))
    # 40 and 40 without any one GPU need 8 slices on every two of the three.
    assert largest.objective.value == 1.0 and sum(gpu.used for gpu in largest.gpus) == 3


def test_pairs_stand_together_and_layouts_stay_as_they_are():
    request = two(
        (10, 20),
        (10, 20),
        count=2,
        layouts=(("1g.6gb",) * 4,),
        objective=Objective("min_gpus", attainment=1.0),
    )
    request = replace(request, colocations=(Colocation(("a", "b"), "hard"),))
    outcome = plan(request)
    assert outcome.status == "optimal" and outcome.objective.value == 1
    there = {tenant.model for gpu in outcome.gpus for item in gpu.slices for tenant in item.tenants}
    assert there == {"a", "b"}
    assert {item.profile for gpu in outcome.gpus for item in gpu.slices} == {"1g.6gb"}


def test_a_price_counts_as_it_does_with_minima():
    request = two((40, 80), (40, 80), cost=2.5, objective=Objective("min_gpus", attainment=0.5))
    outcome = plan(request)
    assert outcome.objective.value == 5.0 and outcome.cost_per_hour == 5.0


def test_the_samples_held_out_judge_the_plan():
    request = two((10, 12, 20, 80, 10), (10, 80, 20, 10, 10), objective=Objective("min_gpus", attainment=1.0))
    half = planned_samples(request)
    assert [model.demand_samples for model in half.models] == [(10, 20, 10), (10, 20, 10)]
    outcome = plan(half)
    assert outcome.objective.value == 1 and held_of_others(request, outcome) == (0, 2)
    assert held_share(request, [20.0, 20.0]) == 0.6
    with pytest.raises(InputFault, match="fewer than two samples"):
        planned_samples(two((1.0,), (1.0,)))


def test_shares_that_ask_for_as_many_samples_are_one_plan_and_none_without_a_plan():
    request = two((10, 12, 20, 80, 900, 10), (10, 80, 20, 10, 900, 10), objective=Objective("min_gpus"))
    calls = []

    def planner(asked, progress):
        calls.append(asked)
        return plan(asked)

    points = held_out_curve(request, (0.6, 1.0, 0.5, 0.65), planner)
    assert [point.asked for point in points] == [0.5, 0.6, 0.65, 1.0, None]
    assert [point.held for point in points[:3]] == [held_of_others(request, points[0].outcome)[0]] * 3
    assert points[3].outcome.status == "infeasible" and points[3].held is None and points[3].count == 3
    assert points[4].outcome.samples.held == 2 and len(calls) == 3
    assert sum(asked.solver.time_limit_s for asked in calls) <= request.solver.time_limit_s * (1 + 1e-9)
    penalised = replace(request, objective=Objective("min_gpus", separation_weight=0.1))
    assert held_out_curve(penalised, (0.5,), planner)[-1].asked == 0.5


def test_without_time_it_says_so():
    rates = tuple(float(number % 37) for number in range(400))
    request = two(
        rates, rates[::-1], objective=Objective("min_gpus", attainment=0.9), solver=SolverOptions(1e-6)
    )
    outcome = plan(request)
    assert outcome.status in ("timeout", "feasible", "optimal")
    assert not list(violations(request, outcome))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"held": 3}, "and it holds 2 of 3 samples"),
        ({"share": 0.9}, "and it holds 2 of 3 samples"),
        ({"worst_model": "b"}, "and it holds 2 of 3 samples"),
        ({"required": 1}, "and it holds 2 of 3 samples"),
        (None, "does not say which samples are held"),
    ],
)
def test_a_false_count_is_refused(change, words):
    request = two((10, 20, 900), (10, 20, 10), objective=Objective("min_gpus", attainment=0.6))
    outcome = plan(request)
    assert outcome.samples == HeldSamples(3, 2, 2 / 3, 2, "a") and not list(violations(request, outcome))
    false = replace(outcome, samples=change and replace(outcome.samples, **change))
    assert words in str(next(violations(request, false)))
    first, *others = outcome.models
    wrong = replace(outcome, models=(replace(first, samples_held=3), *others))
    assert "other samples by model" in str(next(violations(request, wrong)))


def test_a_plan_that_holds_too_few_is_refused():
    request = two((10, 20, 900), (10, 20, 10), objective=Objective("min_gpus", attainment=0.3))
    outcome = plan(request)
    strict = replace(request, objective=Objective("min_gpus", attainment=1.0))
    moved = replace(
        outcome,
        request_sha256=plan(strict, reasons=False).request_sha256,
        samples=outcome.samples and replace(outcome.samples, required=3),
    )
    assert any("and 3 are required" in str(fault) for fault in violations(strict, moved))


def test_rules_of_thumb_say_that_they_know_no_samples():
    request = two((10, 20), (10, 20), objective=Objective("min_gpus", attainment=1.0))
    assert {baseline.outcome for baseline in build_baselines(request)} == {None}
    largest = replace(request, objective=Objective("attainment"))
    assert any(baseline.outcome is not None for baseline in build_baselines(largest, plan(largest)))
