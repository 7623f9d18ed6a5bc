"""Plans sought in a thread: changed from a known one, or with given latencies."""

import math
import time
from dataclasses import dataclass, replace

import pytest

from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import crowded
from torchsplit_core.planning import plan
from torchsplit_core.planning.fractional import slice_contents
from torchsplit_core.planning.fractional.model_patterns import plan_search
from torchsplit_core.planning.fractional.model_patterns.plan_search import PlanSearch
from torchsplit_core.planning.fractional.slice_contents import ContentPlan, better_contents, content_plan
from torchsplit_core.planning.problem.build import Problem, build_problem


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """No program is given up on a slow machine."""
    monkeypatch.setattr(plan_search, "REPAIR_S", 60.0)
    monkeypatch.setattr(slice_contents, "STEP_S", 60.0)


@dataclass
class _Reached:
    reached: float
    bound: float


def _known() -> tuple[Problem, ContentPlan, ContentPlan, float]:
    """A request whose plan of whole slices contents improve: both plans, and the best level."""
    for seed in (3, 5, 22, 24, 25):
        request = crowded(seed)
        problem, whole = build_problem(request), plan(replace(request, sharing="exclusive"))
        best = best_shared(request)
        assert best is not None and whole.objective.value is not None
        better = better_contents(problem, whole, 10 * best[0], math.inf)
        known = content_plan(problem, whole.gpus, whole.objective.value)
        if better is not None and known is not None:
            return problem, known, better, best[0]
    raise AssertionError("no request has a better plan")


def _first(search: PlanSearch) -> ContentPlan | None:
    """The first plan, or None once nothing is left to do."""
    with search.begun(math.inf):
        while not search.plans and (search.waiting or search.may_change):
            time.sleep(0.01)
    # What it was at when it ended is done.
    return search.better()


def test_a_known_plan_is_changed_without_any_repair():
    problem, known, _, best = _known()
    first = _first(PlanSearch(problem, _Reached(known.level, 10 * best), known))
    assert first is not None and known.level < first.level <= best * (1 + 1e-6)


def test_given_latencies_are_a_plan_where_none_is_known():
    problem, known, better, best = _known()
    search = PlanSearch(problem, _Reached(known.level, 10 * best))
    search.repair([dict(better.least)])
    first = _first(search)
    assert first is not None and known.level < first.level <= best * (1 + 1e-6)


def test_no_plan_at_or_below_the_level_reached_is_handed_out():
    problem, known, _, best = _known()
    search = PlanSearch(problem, _Reached(best, 10 * best), known)
    assert _first(search) is None and search.tried == set()
