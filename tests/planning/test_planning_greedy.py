"""The plan for when time is short: fair, verified, never in the place of a better one."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from torchsplit_core.planning import plan, verify
from torchsplit_core.planning.expand import expand
from torchsplit_core.planning.formulation import build
from torchsplit_core.planning.greedy import improve
from torchsplit_core.planning.leximin import Search, level_values
from torchsplit_core.planning.search import search
from torchsplit_core.profiling.library import mix_request
from torchsplit_core.values import PlanRequest


def mix(gpus: int) -> PlanRequest:
    return mix_request("S3", gpus)


@pytest.mark.parametrize("gpus", [5, 64])
def test_without_any_search_every_model_is_served_about_fairly(gpus: int) -> None:
    built = build(expand(mix(gpus)), "exclusive")
    found = Search(stages=11)
    improve(built, found)
    assert found.best is not None and found.status == "feasible" and found.proven == 0
    assert len(found.bounds) == 11
    assert found.values == level_values(built, found.best)
    # 64 GPUs serve about 12.8 times what 5 GPUs do; the greedy plan stays within a fifth of the 5-GPU optimum.
    assert found.values[0] > 0.8 * 1.128 * gpus / 5
    assert all(
        bound is not None and bound >= value for bound, value in zip(found.bounds, found.values, strict=True)
    )


def test_a_plan_of_a_time_limit_that_is_too_short_is_fair_and_verified() -> None:
    request = mix(5)
    request = replace(request, solver=replace(request.solver, time_limit_s=0.01))
    outcome = plan(request)
    verify(request, outcome)
    assert outcome.status == "feasible"
    assert outcome.objective.value is not None and outcome.objective.value > 0.9
    assert outcome.objective.bound is not None and outcome.objective.bound >= 1.128


def test_a_better_plan_stays() -> None:
    request = mix(1)
    request = replace(request, models=request.models[:3])
    built = build(expand(request), "exclusive")
    found = search(built, time.perf_counter() + 60)
    assert found.status == "optimal"
    found.status = "feasible"
    before = found.best
    improve(built, found)
    assert found.best is before


def test_a_minimum_that_the_greedy_plan_misses_is_no_plan() -> None:
    request = mix(1)
    models = (replace(request.models[0], min_throughput_rps=1e6), *request.models[1:])
    found = Search(stages=11)
    improve(build(expand(replace(request, models=models)), "exclusive"), found)
    assert found.best is None and found.status == "timeout"
