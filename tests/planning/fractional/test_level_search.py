"""Levels decided for all layouts and options: against every plan, and where prices and contents alone end early."""

import math
import threading
from contextlib import closing

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import crowded, small
from tests.support.seeds import repeated
from torchsplit_core.planning.fractional.model_patterns.level_bounds import bound_level
from torchsplit_core.planning.fractional.model_patterns.level_program import ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.level_search import (
    DECIDED,
    LevelSearch,
    has_few_fleets,
)
from torchsplit_core.planning.fractional.relaxation import aggregate_shares
from torchsplit_core.planning.fractional.slice_contents import is_known
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.values import PlanRequest


def _decide(request: PlanRequest, reached: float, bound: float, until: float = math.inf) -> LevelSearch:
    search = LevelSearch(ModelPatterns(build_problem(request)), reached, bound)
    for better in search.run(until):
        search.reached = max(search.reached, better.level)
    return search


def _is_covered(request: PlanRequest) -> bool:
    problem = build_problem(request)
    return bool(problem.choices) and is_known(problem) and has_few_fleets(ModelPatterns(problem))


@pytest.mark.slow
@repeated("seed", [36, *range(36), *range(37, 120)], kept=4)  # 36: no end is left but for rounding
def test_plan_and_bound_meet_at_the_best_of_all_plans(seed):
    covered = 0
    for request in (crowded(seed), small(seed, "max_min")):
        best = best_shared(request)
        if best is None or best[0] <= 0 or not _is_covered(request):
            continue
        covered += 1
        search = _decide(request, 0.7 * best[0], 1.5 * best[0])
        assert search.reached <= best[0] * (1 + DECIDED) and best[0] * (1 - 1e-6) <= search.bound
        assert search.bound <= search.reached * (1 + 2 * DECIDED)
    if seed == 0:
        assert covered


def test_no_thread_outlives_a_search_that_ends_in_a_fault():
    """A repair that waits for work would keep the process from ending."""
    request = crowded(0)
    best = best_shared(request)
    search = LevelSearch(ModelPatterns(build_problem(request)), 0.7 * best[0], 1.5 * best[0])
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), closing(search.run(math.inf)) as plans:
        assert next(plans) is not None and threading.active_count() > before
        raise KeyboardInterrupt
    assert threading.active_count() == before


@pytest.mark.slow
@repeated("seed", range(6), kept=0)
def test_levels_are_decided_where_models_mix_their_latencies(seed):
    """Three models on a GPU: what boxes and prices leave open is decided, by a plan or by a proof."""
    family = Family(kind="max_min", sharing="fractional", limits=True)
    request = fleet_instance(3, 1, seed=seed, family=family)
    patterns = ModelPatterns(build_problem(request))
    pooled = aggregate_shares(patterns.problem, math.inf)
    assert pooled is not None
    priced = bound_level(patterns, 0.5 * pooled.bound, pooled.bound, math.inf)
    search = _decide(request, 0.5 * priced, priced)
    assert 0.5 * priced < search.reached and search.bound <= search.reached * (1 + 2 * DECIDED)
