"""An objective is described in one place: who names one, and what the description says of each."""

import ast
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import app
import torchsplit_core
from app.plans.summary import OBJECTIVES
from tests.support.planning.edits import with_each_model
from tests.support.planning.requests import published, random_request
from tests.support.planning.sampled_requests import sampled
from torchsplit_core.planning import plan
from torchsplit_core.planning.exclusive.plan import plan_exclusive
from torchsplit_core.planning.explanation.relaxation_bound import relaxation_bound
from torchsplit_core.planning.outcome.figures import level_values
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request import objective
from torchsplit_core.planning.request.objective import (
    GOALS,
    first_level_objective,
    goal_of,
    has_penalties,
    level_count,
    level_positions,
    leximin_values,
    normalised,
    objective_levels,
    reached_levels,
)
from torchsplit_core.planning.verification.objective import check_objective
from torchsplit_core.profiling import library
from torchsplit_core.values import (
    Objective,
    ObjectiveKind,
    ObjectiveValue,
    PlanModel,
    Variant,
    ignore_progress,
)
from torchsplit_core.values.plan import request as plan_request


def naming(word: str) -> set[Path]:
    return {
        path
        for folder in (Path(str(torchsplit_core.__file__)).parent, Path(str(app.__file__)).parent)
        for path in folder.rglob("*.py")
        if word in path.read_text()
    }


def test_a_new_objective_touches_four_files():
    import app.plans.summary as words

    check = Path(check_objective.__code__.co_filename)
    files = {Path(str(part.__file__)) for part in (plan_request, objective, words)}
    # The evaluation asks for plans of it, as a user does; a new one asks nothing of it.
    asking = {path for path in naming("weighted_sum") if path.parent.name == "evaluation"}
    assert naming("weighted_sum") - asking == {*files, check}


def written(kind: str) -> set[Path]:
    """The files whose code, comments and docstrings apart, has this very string."""
    return {
        path
        for path in naming(kind)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == kind
    }


@pytest.mark.parametrize("kind", ["max_min", "weighted_sum", "min_gpus"])
def test_no_other_code_asks_for_an_objective_by_name(kind):
    # What asks for fewest GPUs there writes a request; it stands beside the planner and cannot ask it.
    beside = {Path(str(library.__file__))} if kind == "min_gpus" else set()
    assert written(kind) <= naming("weighted_sum") | beside


def test_the_contract_the_planner_and_the_page_know_the_same_objectives():
    assert list(GOALS) == list(get_args(ObjectiveKind)) == list(OBJECTIVES)


def test_the_first_level_alone():
    penal = Objective("leximin", 0.5, 0.25)
    assert first_level_objective(penal) == replace(penal, kind="max_min")
    for kind in ("max_min", "weighted_sum", "min_gpus"):
        assert first_level_objective(Objective(kind)) == Objective(kind)  # type: ignore[arg-type]


def test_how_many_levels_there_are():
    request = published(1)
    counts = {
        kind: level_count(replace(request, objective=Objective(kind))) for kind in get_args(ObjectiveKind)
    }
    assert counts == {"leximin": 4, "max_min": 1, "weighted_sum": 1, "min_gpus": 1, "attainment": 1}
    first, *others = request.models
    request = replace(request, models=(replace(first, tier=3), *others))
    assert level_count(request) == 8
    assert [(rung.models, rung.cap, place) for rung, place in level_positions(request.models)] == [
        ((0,), 1.0, 1),
        *(((1, 2, 3), 1.0, place) for place in (1, 2, 3)),
        *(((0, 1, 2, 3), float("inf"), place) for place in (1, 2, 3, 4)),
    ]
    alike = tuple(replace(model, tier=7) for model in request.models)
    assert level_count(replace(request, models=alike)) == 4


def test_penalties_are_paid_for_memory_and_for_separations():
    assert not has_penalties(Objective()) and not has_penalties(Objective(memory_violation_penalty=0.0))
    assert has_penalties(Objective(memory_violation_penalty=0.1))
    assert has_penalties(Objective(separation_weight=0.1))


def test_what_counts_is_capped_and_over_weight_times_demand():
    spec = PlanModel("m", (Variant("whole", ()),), weight=2.0, demand_rps=5.0, cap_at_demand=True)
    assert normalised(spec, 4.0) == 0.4 and normalised(spec, 50.0) == 0.5
    assert normalised(replace(spec, cap_at_demand=False), 50.0) == 5.0


def test_values_of_every_kind():
    request = published(1)
    models = tuple(
        replace(spec, weight=weight, demand_samples=(2.0, 3.0, 8.0, 8.1))
        for spec, weight in zip(request.models, (1, 2, 4, 8), strict=True)
    )
    request = replace(request, models=models)
    rates = [3.0, 2.0, 8.0, 8.0]
    found = {
        kind: objective_levels(replace(request, objective=Objective(kind)), rates, 7.0, 0.5)  # type: ignore[arg-type]
        for kind in GOALS
    }
    assert leximin_values(request, rates) == [1.0, 1.0, 2.0, 3.0]
    assert found == {
        "leximin": [0.5, 0.5, 1.5, 2.5],
        "max_min": [0.5],
        "weighted_sum": [3.0 + 4.0 + 32.0 + 64.0 - 0.5],
        "min_gpus": [7.5],
        # Of the four moments only the first has no entry above its model's rate.
        "attainment": [0.25],
    }


@pytest.mark.parametrize("kind", list(GOALS))
def test_a_plans_levels_are_read_off_its_outcome(kind):
    compared = 0
    for seed in range(8):
        request = sampled(seed, kind) if kind == "attainment" else random_request(seed, kind)
        outcome = plan(request)
        if outcome.objective.value is None:
            assert reached_levels(outcome.objective) == ()
            continue
        compared += 1
        assert reached_levels(outcome.objective) == pytest.approx(
            level_values(request, outcome.gpus, outcome.models)
        )
    assert compared > 2


def test_less_is_better_of_a_cost_alone():
    cost, fair = GOALS["min_gpus"], goal_of(ObjectiveValue("leximin", 1.0))
    assert cost.better((1.0,), (2.0,)) and not cost.better((2.0,), (2.0,))
    assert fair.better((1.0, 3.0), (1.0, 2.0)) and not fair.better((1.0, 2.0), (1.0, 2.0))
    assert (cost.tightest_bound(1.0, 2.0), fair.tightest_bound(1.0, 2.0)) == (2.0, 1.0)
    # A bound beyond which a value lies gives way to the value.
    assert (cost.clamp_bound(3.0, 2.0), cost.clamp_bound(1.0, 2.0)) == (2.0, 1.0)
    assert (fair.clamp_bound(1.0, 2.0), fair.clamp_bound(3.0, 2.0)) == (2.0, 3.0)


def test_a_row_more_is_an_objective_more(monkeypatch):
    """Requests/s whatever the weights: searched, bounded and valued as a weighted sum with all weights 1 is."""
    monkeypatch.setitem(GOALS, "total", replace(GOALS["weighted_sum"], label="total", gain=lambda spec: 1.0))  # type: ignore[arg-type]
    compared = 0
    for seed in range(6):
        weighted = random_request(seed, "weighted_sum")
        alike = with_each_model(weighted, weight=1.0)
        total = replace(weighted, objective=replace(weighted.objective, kind="total"))  # type: ignore[arg-type]
        one, other = (
            plan_exclusive(build_problem(asked), time.perf_counter() + 30.0, ignore_progress)
            for asked in (total, alike)
        )
        assert one.levels.status == other.levels.status
        assert one.levels.values == pytest.approx(other.levels.values)
        first, second = (relaxation_bound(asked, 5.0) for asked in (total, alike))
        assert (first is None) == (second is None)
        if first is not None and second is not None:
            compared += 1
            assert first.bound == pytest.approx(second.bound)
    assert compared > 2
