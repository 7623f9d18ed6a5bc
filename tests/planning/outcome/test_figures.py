"""What plans give, reckoned in one place: solver's plans and others have the same figures."""

import pytest

from tests.support.planning.requests import published, random_request
from tests.support.seeds import repeated
from torchsplit_core.planning import plan
from torchsplit_core.planning.outcome.figures import level_values, planned_models_of, unproven_outcome
from torchsplit_core.planning.request.objective import GOALS
from torchsplit_core.values import InputFault, PlanStatistics

NOTHING = PlanStatistics(0.0, 0.0, 0.0, "none")


@pytest.mark.slow
@repeated("kind", ["leximin", "min_gpus", "max_min", "weighted_sum"], kept=2)
def test_the_slices_of_a_solvers_plan_give_its_figures(kind):
    compared = 0
    for seed in range(12):
        request = random_request(seed, kind)
        outcome = plan(request)
        if outcome.objective.value is None:
            continue
        assert planned_models_of(request, outcome.gpus) == outcome.models
        levels = level_values(request, outcome.gpus, outcome.models)
        assert levels[0] == outcome.objective.value
        assert len(levels) == (len(request.models) if kind == "leximin" else 1)
        found = unproven_outcome(request, outcome.gpus, NOTHING, outcome)
        assert found.objective.value == outcome.objective.value and found.objective.proven_levels == 0
        if outcome.status == "optimal":
            assert (found.objective.bound, found.objective.gap) == (outcome.objective.value, 0.0)
        compared += 1
    assert compared > 2


@pytest.mark.parametrize(
    ("kind", "value", "bound", "gap"),
    [
        ("leximin", 3.0, 4.0, 0.25),
        ("weighted_sum", -2.0, -1.0, 1.0),
        ("min_gpus", 4.0, 3.0, 0.25),
        ("max_min", 4.0, 3.0, 0.0),
        ("min_gpus", 3.0, 4.0, 0.0),
        ("leximin", 0.0, 0.0, 0.0),
        ("min_gpus", 0.0, 0.0, 0.0),
    ],
)
def test_the_gap_is_that_of_the_contract(kind, value, bound, gap):
    assert GOALS[kind].gap(value, bound) == gap


def test_a_bound_of_another_request_is_refused():
    with pytest.raises(InputFault, match="answers another request"):
        unproven_outcome(published(1), (), NOTHING, plan(published(2)))
