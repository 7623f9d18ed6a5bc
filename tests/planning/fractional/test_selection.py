"""Selections of a pattern for each model: against every plan of small requests, and on larger ones."""

import math
import time

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import crowded
from tests.support.seeds import repeated
from torchsplit_core.planning.fractional import slice_contents
from torchsplit_core.planning.fractional.model_patterns import selection
from torchsplit_core.planning.fractional.model_patterns.level_bounds import bound_level
from torchsplit_core.planning.fractional.model_patterns.level_program import ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.selection import PatternSelection
from torchsplit_core.planning.fractional.slice_contents import contents_of
from torchsplit_core.planning.fractional.tenancy_counts import TenancyCounts
from torchsplit_core.planning.problem.build import Problem, build_problem

LIMITS = Family(kind="max_min", sharing="fractional", limits=True)


class Levels:
    """The levels that plans of the selections reach."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.best, self.counts = problem, 0.0, list[TenancyCounts]()

    def search(self, search: PatternSelection, deadline: float) -> None:
        for counts in search.run(deadline):
            self.counts.append(counts)
            contents = contents_of(self.problem, counts, self.best, counts.bound, math.inf)
            self.best = self.best if contents is None else contents.level
            search.reached = max(search.reached, self.best)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """No program is given up on a slow machine."""
    monkeypatch.setattr(selection, "STEP_S", 60.0)
    monkeypatch.setattr(slice_contents, "STEP_S", 60.0)


@pytest.mark.slow
@repeated("seed", range(40), kept=10)
def test_selections_find_what_every_plan_has(seed):
    request = crowded(seed)
    best = best_shared(request)
    patterns = ModelPatterns(build_problem(request))
    if best is None or not best[0] or not patterns.is_complete:
        return
    levels = Levels(patterns.problem)
    bound = bound_level(patterns, 0.5 * best[0], 2.0 * best[0], math.inf)
    levels.search(PatternSelection(patterns, 0.0, bound), math.inf)
    assert levels.best <= best[0] * (1 + 1e-6)
    assert levels.best >= 0.9 * best[0]


def test_no_options_are_selected_together_twice():
    patterns = ModelPatterns(build_problem(fleet_instance(3, 1, seed=2, family=LIMITS)))
    bound = bound_level(patterns, 0.1, 10.0, math.inf)
    search, levels = PatternSelection(patterns, 0.1, bound), Levels(patterns.problem)
    levels.search(search, math.inf)
    assert levels.best > 0.1 and len(search.tried) == len(levels.counts) > 1
    assert len({tuple(sorted(options.items())) for options in search.tried}) == len(search.tried)


def test_without_time_nothing_is_selected():
    patterns = ModelPatterns(build_problem(fleet_instance(4, 2, seed=2, family=LIMITS)))
    levels = Levels(patterns.problem)
    levels.search(PatternSelection(patterns, 0.1, 0.6), time.perf_counter() - 1)
    assert not levels.counts
