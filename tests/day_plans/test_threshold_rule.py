"""Replicas that follow their load: counts by the words of the HorizontalPodAutoscaler, slices, packing, periods."""

import math
import random
from dataclasses import replace

import pytest

from tests.support.planning.requests import on_a30, simple
from tests.support.seeds import in_blocks
from torchsplit_core.day_plans.replay.replicas import FirstFit, best_replica, replicas_by_load
from torchsplit_core.day_plans.replay.rule_day import models_without_replica, rule_day
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.transition import ChangeTimes
from torchsplit_core.values import FleetEntry, Stage, ThresholdRule, Variant

RATES = {"1g.6gb": 10.0, "2g.12gb": 25.0, "4g.24gb": 40.0}
PLAIN = ThresholdRule(0.5, tolerance=0.0, stabilisation_s=0.0)


def test_as_many_replicas_as_keep_the_target_and_at_least_one():
    assert replicas_by_load([0.0, 4.9, 5.0, 5.1, 50.0, 51.0], 10.0, PLAIN, 600) == [1, 1, 1, 2, 10, 11]


def test_where_the_load_is_not_known_there_are_as_many_as_before():
    assert replicas_by_load([None, 20.0, None, None, 40.0], 10.0, PLAIN, 600) == [4, 4, 4, 4, 8]


def test_within_the_tolerance_nothing_changes():
    rule = replace(PLAIN, tolerance=0.1)
    # Four replicas at a target of 50 % carry 20: up to 22 and down to 18 nothing changes.
    assert replicas_by_load([20.0, 22.0, 18.0, 22.1, 22.0], 10.0, rule, 600) == [4, 4, 4, 5, 5]


@in_blocks("seed", range(40))
def test_fewer_only_as_every_decision_of_the_last_minutes_asked(seed):
    """By the words of the rule: more at once, and fewer by the most that was asked for lately."""
    rng = random.Random(seed)
    rule = ThresholdRule(rng.choice([0.5, 0.7]), rng.choice([0.0, 0.1]), rng.choice([0.0, 300.0, 900.0]))
    loads = [rng.uniform(0, 100) for _ in range(30)]
    step = rng.choice([60, 300, 600])
    current, asked, expected = max(1, math.ceil(loads[0] / (rule.target * 10.0))), [], []
    for number, load in enumerate(loads):
        wanted = max(1, math.ceil(load / (rule.target * 10.0)))
        ratio = load / (current * 10.0) / rule.target
        asked.append(current if 1 - rule.tolerance <= ratio <= 1 + rule.tolerance else wanted)
        lately = [
            asked[at]
            for at in range(number + 1)
            if (number - at) * step < rule.stabilisation_s or at == number
        ]
        highest = max(lately)
        current = asked[-1] if asked[-1] >= current else min(current, highest)
        expected.append(current)
    assert replicas_by_load(loads, 10.0, rule, step) == expected


def test_the_slice_is_that_of_the_fullest_gpu_within_the_latency():
    model = simple("a", RATES)
    request = on_a30(model)
    # Four of 1g give 40, two of 2g 50, one of 4g 40.
    assert best_replica(request, model).point.profile == "2g.12gb"
    quick = replace(model, variants=(Variant("whole", (Stage("whole", tuple(
        replace(point, latency_ms=99.0 if point.profile == "2g.12gb" else 5.0) for point in model.points)),)),),
        max_latency_ms=50.0)  # fmt: skip
    assert best_replica(request, quick).point.profile == "1g.6gb"
    fleet = (FleetEntry("A30-24GB", layouts=(("4g.24gb",),)),)
    assert best_replica(replace(request, gpus=fleet), model).point.profile == "4g.24gb"


def test_a_model_that_is_only_cut_or_too_slow_has_no_replica():
    slow = simple("slow", RATES, latency_ms=20.0, max_latency_ms=10.0)
    parts = tuple(Stage(name, simple("x", RATES).points) for name in ("front", "back"))
    cut = replace(simple("cut", RATES), variants=(Variant("cut", parts),))
    assert models_without_replica(on_a30(slow, cut, simple("a", RATES))) == ("slow", "cut")


def test_replicas_are_packed_first_fit_and_legal():
    packing = FirstFit()
    kind = "A30-24GB"
    two, single, full = (kind, "2g.12gb", 1), (kind, "1g.6gb", 1), (kind, "4g.24gb", 1)
    assert packing.gpus([(single, 4)]) == 1 and packing.gpus([(single, 5)]) == 2
    assert packing.gpus([(two, 1), (single, 2)]) == 1 and packing.gpus([(two, 2), (single, 1)]) == 2
    assert packing.gpus([(full, 1), (single, 1)]) == 2
    assert packing.gpus([((kind, "", 2), 3)]) == 6


def day_by_rule(rates, rule=PLAIN, **times):
    request = on_a30(simple("a", {"1g.6gb": 10.0}))
    trace = DemandTrace(0, 3600, {"a": tuple(rates)})
    return rule_day(request, trace, replace(rule, lag_s=60.0), ChangeTimes(**times))


def test_a_replica_serves_once_it_has_started_and_none_that_is_given_up():
    day = day_by_rule([5.0] * 8 + [15.0] * 4 + [5.0] * 12, start_s=240.0, create_s=1.0, drain_s=30.0)
    moments = sorted((period.begin_s, period.end_s) for period in day.periods)
    up, down = 8 * 3600 + 60.0, 12 * 3600 + 60.0
    assert moments == [(0.0, DAY_S), (up + 241, down), (up + 241, down)]
    assert day.changes == ((up, up + 241), (down, down + 30))


def test_gpu_hours_of_the_rule_are_those_of_its_replicas_step_by_step():
    rates = [5.0] * 6 + [30.0] * 6 + [12.0] * 12
    day = day_by_rule(rates)
    counts = [max(1, math.ceil(rate / 5.0)) for rate in rates]
    gpus = [math.ceil(count / 4) for count in counts]
    # A decision comes a minute after the load: the first minute of each hour has the GPUs of the hour before.
    shifted = sum(before - now for before, now in zip([gpus[0], *gpus], gpus, strict=False)) * 60
    assert day.gpu_hours == pytest.approx(sum(gpus) + shifted / 3600) and day.most_gpus == 2


def test_a_replica_that_would_start_after_it_is_given_up_never_serves():
    day = day_by_rule([5.0, 50.0] + [5.0] * 22, start_s=4000.0)
    assert sorted((period.begin_s, period.end_s) for period in day.periods) == [(0.0, DAY_S)]
