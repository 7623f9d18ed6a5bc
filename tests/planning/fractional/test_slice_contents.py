"""Contents of slices: against every plan of small requests, and what they improve."""

import itertools
import math
from dataclasses import replace

import pytest

from benchmarks.fleet_instances import Family, fleet_instance
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import crowded, small
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.fractional.diving import assign_patterns
from torchsplit_core.planning.fractional.packing import equalise_shares
from torchsplit_core.planning.fractional.slice_contents import better_contents, is_known, list_options
from torchsplit_core.planning.outcome.assignment import Assignment
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import unit_rps


def _level(problem: Problem, assignment: Assignment) -> float:
    """Of the worst-served model."""
    rates = [0.0] * len(problem.request.models)
    for item in assignment.slices:
        assert sum(share for _, share in item.tenants) <= 1 + 1e-6
        for choice, share in item.tenants:
            rates[choice.model] += share * choice.rate_rps
    return min(rate / unit_rps(spec) for rate, spec in zip(rates, problem.request.models, strict=True))


SERVED = (3, 5, 22, 24, 25, 29, 30, 39, 49, 54, 57)
"""Of the first 60 those in which whole slices serve every model."""


@pytest.mark.slow
@repeated("seeds", [SERVED, range(60), range(60, 120)])
def test_contents_reach_the_best_plan_and_none_above_it(seeds):
    reached = tried = improved = 0
    for seed in seeds:
        request = crowded(seed)
        problem, whole = build_problem(request), plan(replace(request, sharing="exclusive"))
        best = best_shared(request)
        if best is None or not whole.objective.value:
            continue
        better = better_contents(problem, whole, 10 * best[0], math.inf)
        level = whole.objective.value if better is None else better.level
        assert level <= best[0] * (1 + 1e-6)
        if better is not None:
            assigned = assign_patterns(problem, better.layouts, better.patterns)
            assert _level(problem, assigned) == pytest.approx(level)
            fair = equalise_shares(problem, assigned)
            assert fair is not None and _level(problem, fair) >= level * (1 - 1e-6)
        tried += 1
        improved += better is not None
        reached += level >= best[0] * (1 - 1e-3)
    assert tried >= 10 and improved > 2
    # The rest has points whose memory differs by less than contents tell apart.
    assert reached >= 0.9 * tried


def test_models_of_several_stages_and_pairs_are_left_to_others():
    staged = [build_problem(small(seed, "max_min")) for seed in (0, 3, 6)]
    assert any(case.stages > 1 for problem in staged for case in problem.cases)
    assert all(is_known(problem) == all(case.stages == 1 for case in problem.cases) for problem in staged)
    paired = fleet_instance(4, 2, seed=1, family=Family(sharing="fractional", pairs=1), seconds=2.0)
    assert not is_known(build_problem(paired))


def test_a_larger_least_share_is_an_option_where_it_brings_a_better_point():
    problem = build_problem(
        fleet_instance(4, 2, seed=3, family=Family(sharing="fractional", limits=True), seconds=2.0)
    )
    for case, options in list_options(problem).items():
        assert options == sorted(set(options)) and options[-1] <= 1 + 1e-6
        rates = [
            {
                (choice.group, choice.profile): choice.rate_rps
                for choice in sorted(problem.choices, key=lambda choice: choice.rate_rps)
                if choice.case == case
                and choice.point.latency_ms <= part * problem.cases[case].budget_ms * (1 + 1e-9)
            }
            for part in options
        ]
        for fewer, more in itertools.pairwise(rates):
            assert all(more[pool] >= rate for pool, rate in fewer.items()) and more != fewer
