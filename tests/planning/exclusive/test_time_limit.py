"""The time limit: what every solver call gets of it, and what stands where co-locations take too long."""

import time
from dataclasses import replace
from typing import Any, Literal

import pyomo.environ as pyo
import pytest

from tests.support.planning.requests import published
from tests.support.seeds import repeated
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.exclusive import plan as exclusive
from torchsplit_core.planning.formulation import build as building
from torchsplit_core.planning.formulation import model as formulation
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.planning.timing import OutOfTime
from torchsplit_core.solver.pyomo_model import MIN_TIME_LIMIT_S, ModelSolution, solve
from torchsplit_core.values import Colocation, Objective, PlanRequest, SolverOptions

Sharing = Literal["exclusive", "fractional"]

LIMIT_S = 5.0


class _Clock:
    """A clock that only solver calls with whole numbers move, each by all the time it was given.

    Linear programs (of the shares of a plan at hand) are solved at once.
    """

    def __init__(self) -> None:
        self.now, self.given = 0.0, list[tuple[float, float]]()

    def __call__(self) -> float:
        return self.now

    def solve(self, model: Any, seconds: float, **options: Any) -> ModelSolution:
        answer = solve(model, seconds, **options)
        if not all(var.is_continuous() for var in model.component_data_objects(pyo.Var)):
            self.given.append((self.now, seconds))
            self.now += max(seconds, MIN_TIME_LIMIT_S)
        return answer


def _soft(kind: str, sharing: Sharing = "exclusive") -> PlanRequest:
    request = published(2)
    pairs = tuple(
        Colocation((one.name, other.name), "soft", 1000.0)
        for one, other in zip(request.models[::2], request.models[1::2], strict=False)
    )
    return replace(
        request,
        colocations=pairs,
        objective=Objective(kind),  # type: ignore[arg-type]
        sharing=sharing,
        solver=SolverOptions(LIMIT_S),
    )


@pytest.mark.parametrize("kind", ["leximin", "weighted_sum"])
@repeated("sharing", ["exclusive", "fractional"])
def test_no_solver_call_gets_more_than_what_is_left(kind, sharing, monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(formulation, "solve", clock.solve)
    outcome = plan(_soft(kind, sharing))
    assert outcome.objective.value is not None
    assert clock.given
    # A small program may be solved for SHORTEST_S when time is up already.
    for begun, seconds in clock.given:
        assert begun + seconds <= LIMIT_S or seconds <= MIN_TIME_LIMIT_S
    assert sum(begun > LIMIT_S for begun, _ in clock.given) <= 2


@pytest.mark.parametrize("kind", ["leximin", "weighted_sum", "min_gpus"])
@repeated("sharing", ["exclusive", "fractional"])
def test_pairs_too_large_to_build_leave_the_plan_without_them(kind, sharing, monkeypatch):
    request = _soft(kind, sharing)
    free = plan(replace(request, colocations=(), sharing="exclusive"))

    def built(problem, mode, **options):
        if problem.colocation_index.members and mode != "pooled":
            raise OutOfTime
        return building.build(problem, mode, **options)

    monkeypatch.setattr(exclusive, "build", built)
    outcome = plan(request)
    assert not list(violations(request, outcome))
    assert free.status == "optimal" and outcome.status in ("feasible", "optimal")
    assert outcome.objective.bound is not None
    reached, best = outcome.objective.value, free.objective.value
    assert reached is not None and best is not None
    close = pytest.approx(best, rel=1e-6)
    assert reached == close or goal_of(request).better((reached,), (best,))


@pytest.mark.parametrize("mode", ["exclusive", "pooled", "concrete"])
def test_building_looks_at_the_clock(mode):
    problem = build_problem(_soft("leximin"), per_gpu=mode == "concrete")
    with pytest.raises(OutOfTime):
        building.build(problem, mode, until=time.perf_counter() - 1.0)


def test_nothing_is_handed_over_that_takes_longer_than_is_left(monkeypatch):
    calls = []

    def told(_: Any, seconds: float, **options: Any) -> ModelSolution:
        calls.append(seconds)
        return ModelSolution("unknown", None, None, {}, 0.0)

    monkeypatch.setattr(formulation, "solve", told)
    built = replace(building.build(build_problem(_soft("leximin")), "exclusive"), build_s=3.0)
    assert built.solve(2.0).status == "unknown" and calls == []
    built.solve(4.0)
    replace(built, build_s=0.1).solve(-1.0)
    assert calls == [4.0, -1.0]
