"""leximin by patterns: against every plan, and with its time cut off against its own full run."""

import random
import time
from dataclasses import replace

import pytest

from tests.support.planning.oracle import best_plan
from tests.support.planning.pattern_search import searching
from tests.support.planning.requests import A30, LAYOUTS, model, on_a30, simple, with_tiers
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, timing
from torchsplit_core.planning.patterns import PatternSolution, feasibility, leximin_levels, solve_patterns
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import level_count, reached_levels, tier_groups
from torchsplit_core.values import FleetEntry, Objective, PlanRequest, ignore_progress

pytestmark = pytest.mark.slow

TICK_S = 0.01
"""What every look at the clock of a test takes."""


class Clock:
    """A clock that moves on at every look: a search stops at the same place on every machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Seconds, more at every call."""
        self.now += TICK_S
        return self.now


def small(seed: int, kind: str = "leximin") -> PlanRequest:
    """Two or three models with any demands on two A30 that offer different layouts."""
    rng = random.Random(f"lift{seed}")
    three = rng.random() < 0.3
    models = tuple(model(rng, f"m{i}", 1, cuts=not three) for i in range(3 if three else 2))
    offered = rng.choice([LAYOUTS[1:2], LAYOUTS[3:]]) if three else rng.choice([None, LAYOUTS[:2]])
    fleet = (FleetEntry(A30, layouts=offered), FleetEntry(A30, id="other", layouts=LAYOUTS[2:]))
    return PlanRequest(fleet, models, objective=Objective(kind), link_gb_per_s=1.0)  # type: ignore[arg-type]


def larger(seed: int) -> PlanRequest:
    """Five to seven models without minima on five or six A30 of two kinds."""
    rng = random.Random(f"larger{seed}")
    models = tuple(
        replace(model(rng, f"m{i}", 2, cuts=i < 2), min_throughput_rps=None, max_latency_ms=None)
        for i in range(rng.randint(5, 7))
    )
    fleet = (FleetEntry(A30, count=3), FleetEntry(A30, count=rng.randint(2, 3), layouts=LAYOUTS[1:]))
    return PlanRequest(fleet, models, link_gb_per_s=1.0)


def tight(seed: int) -> PlanRequest:
    """Models that are best off with whole A30, so many that every one has as many as its weight asks.

    Nothing is lost to whole slices, so the bound of divisible ones is the optimum itself.
    """
    rng = random.Random(f"tight{seed}")
    weights = [rng.choice([1, 1, 2, 3]) for _ in range(rng.randint(3, 5))]
    models = []
    for number, weight in enumerate(weights):
        each = rng.choice([1.0, 3.0, 7.0])
        rates = {"1g.6gb": each, "2g.12gb": 2.2 * each, "4g.24gb": 4.8 * each}
        models.append(simple(f"m{number}", rates, weight=float(weight), demand_rps=each))
    return on_a30(*models, count=2 * sum(weights))


def levels(problem: Problem, counted: PatternSolution) -> tuple[float, ...]:
    """The sorted normalised throughputs of the counts, from the points themselves."""
    found = []
    for index, spec in enumerate(problem.request.models):
        rate = 0.0
        stages = {}
        for number, count in counted.amounts.items():
            choice = problem.choices[number]
            if choice.model == index:
                key = choice.variant, choice.stage
                stages[key] = stages.get(key, 0.0) + count * choice.rate_rps
        if stages:
            (variant,) = {variant for variant, _ in stages}
            assert len(stages) == len(spec.variants[variant].stages)
            rate = min(stages.values())
        if spec.cap_at_demand:
            rate = min(rate, spec.demand_rps)
        found.append(rate / (spec.weight * spec.demand_rps))
    return tuple(sorted(found))


def check_fits(problem: Problem, counted: PatternSolution) -> None:
    """No more GPUs and no more slices than there are."""
    for g, group in enumerate(problem.groups):
        mine = {number: count for (where, number), count in counted.layouts.items() if where == g}
        assert sum(mine.values()) <= len(group.gpu_ids)
        for profile in {name for layout in group.layouts for name in layout.usable_counts}:
            there = sum(count * group.layouts[n].usable_counts.get(profile, 0) for n, count in mine.items())
            used = sum(
                count
                for number, count in counted.amounts.items()
                if (problem.choices[number].group, problem.choices[number].profile) == (g, profile)
            )
            assert used <= there


@pytest.mark.parametrize("kind", ["leximin", "max_min"])
@repeated("block", range(3))
def test_equal_to_every_plan_looked_at(kind, block):
    planned = 0
    for seed in range(block * 12, block * 12 + 12):
        request = small(seed, kind)
        expected, problem = best_plan(request), build_problem(request)
        counted = solve_patterns(problem, time.perf_counter() + 30.0, ignore_progress)
        if counted is None:
            # No model can use any slice.
            assert not problem.choices
            continue
        if expected is None:
            assert counted.status == "infeasible", seed
            continue
        planned += 1
        wanted = expected[0]
        assert (counted.status, counted.proven) == ("optimal", len(wanted)), seed
        assert levels(problem, counted)[: len(wanted)] == pytest.approx(wanted, rel=1e-6, abs=1e-9), seed
        assert counted.bounds[: len(wanted)] == pytest.approx(wanted, rel=1e-6, abs=1e-9), seed
        check_fits(problem, counted)
    assert planned >= 6


@pytest.mark.parametrize(
    "request_", [*map(larger, range(4)), *map(tight, range(4))], ids=lambda item: f"{len(item.models)} models"
)
def test_what_is_known_when_time_runs_out_is_true(request_, monkeypatch):
    problem = build_problem(request_)
    full = solve_patterns(problem, time.perf_counter() + 60.0, ignore_progress)
    assert full is not None and full.status == "optimal"
    best = levels(problem, full)
    assert full.bounds == pytest.approx(best, rel=1e-6)
    cut = 0
    for looks in (0, 5, 20, 60, 150, 400):
        clock = Clock()
        for module in (leximin_levels, feasibility, timing):
            monkeypatch.setattr(module, "time", clock)
        counted = solve_patterns(problem, looks * TICK_S, ignore_progress)
        assert counted is not None and counted.layouts, looks
        check_fits(problem, counted)
        reached = levels(problem, counted)
        # No plan is better than the best one, compared level by level.
        for mine, other in zip(reached, best, strict=True):
            if mine != pytest.approx(other, rel=1e-6, abs=1e-9):
                assert mine < other, looks
                break
        known = counted.proven
        assert reached[:known] == pytest.approx(best[:known], rel=1e-6, abs=1e-9), looks
        assert len(counted.bounds) == len(best)
        if known < len(best):
            cut += 1
            assert counted.status == "feasible"
            assert counted.bounds[known] >= best[known] * (1 - 1e-6), looks
    assert cut >= 2


def test_no_further_level_is_raised_where_the_first_is_open_by_its_time():
    request = tight(1)
    groups, count = tier_groups(request.models), level_count(request)
    until = time.perf_counter() + 60.0
    ended = {}
    for first_until in (time.perf_counter() - 1.0, until):
        search = searching(request)
        assert search is not None
        ended[first_until] = leximin_levels.raise_levels(
            search, groups, count, until, first_until=first_until
        )
    early, full = ended.values()
    assert full.proven == count == len(early.bounds) and early.proven == 0
    assert early.levels <= full.levels
    assert all(bound >= level * (1 - 1e-6) for bound, level in zip(early.bounds, full.levels, strict=True))


TIERED = with_tiers(tight(1), 3)


@pytest.mark.parametrize(
    "request_", [tight(0), tight(1), larger(2), TIERED], ids=["3", "4", "5", "4 with tiers"]
)
def test_bounds_by_prices_alone_hold_however_poor_the_plan(request_):
    full = plan(request_)
    assert full.status == "optimal"
    best = reached_levels(full.objective)
    for part in (0.4, 1.0):
        search = searching(request_)
        assert search is not None
        level = leximin_levels.LevelResult(tier_groups(request_.models))
        ceilings = level.levels_at(search.demand.ceilings)
        for k, value in enumerate(best):
            level.levels = [*best[:k], *(part * other for other in best[k:])]
            bound = leximin_levels.price_bound(search, level, k, ceilings[k], time.perf_counter() + 30.0)
            bound = min(bound, leximin_levels._linear_bound(search, level, k))
            assert bound >= value * (1 - 1e-6), (part, k)
