"""What the statistics of an outcome say of the time spent: searching and building, each second once."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from tests.support.planning.requests import on_a30, published, random_request, simple
from torchsplit_core.planning import plan, planner
from torchsplit_core.planning.exclusive import plan as exclusive_plan
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.fractional import initial_plan
from torchsplit_core.planning.fractional import plan as fractional_plan
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.values import Colocation, Objective, PlanRequest

PAIR = (Colocation(("text check", "encoder")),)
TOO_MUCH = simple("a", {"4g.24gb": 10.0}, min_throughput_rps=12.5)
OUT_OF_REACH = on_a30(TOO_MUCH)

ASKED: dict[str, tuple[PlanRequest, str, dict[str, object]]] = {
    "patterns": (published(), "optimal", {"method": "patterns"}),
    "filled": (published(colocations=PAIR), "optimal", {"method": "patterns, on filled GPUs"}),
    "dealt": (
        published(colocations=(replace(PAIR[0], mode="soft"),)),
        "optimal",
        {"method": "patterns, dealt out"},
    ),
    "program": (random_request(11, "leximin"), "optimal", {"stages": 2}),
    "one stage": (published(objective=Objective("weighted_sum")), "optimal", {"stages": 1}),
    "quick shares": (
        on_a30(simple("a", {"2g.12gb": 10.0}), simple("b", {"2g.12gb": 10.0}), sharing="fractional"),
        "optimal",
        {"method": "pooled"},
    ),
    "shares": (published(sharing="fractional"), "optimal", {"pooled": "optimal"}),
    "shares together": (
        published(1, sharing="fractional", colocations=PAIR),
        "optimal",
        {"counted": "optimal"},
    ),
    "no plan": (OUT_OF_REACH, "infeasible", {"method": "patterns"}),
    "no shares": (replace(OUT_OF_REACH, sharing="fractional"), "infeasible", {"pooled": "infeasible"}),
}
"""Requests whose plans come by different ways: the request, the status, and details that tell the way."""


@pytest.mark.parametrize("name", ASKED)
def test_searching_and_building_are_told_apart_and_are_no_more_than_the_call(name):
    request, status, details = ASKED[name]
    begun = time.perf_counter()
    outcome = plan(request)
    wall = time.perf_counter() - begun
    spent = outcome.statistics
    assert outcome.status == status
    assert details.items() <= spent.details.items(), spent.details
    assert spent.solve_s > 0 and spent.build_s > 0 and spent.verify_s > 0
    assert spent.build_s + spent.solve_s + spent.verify_s <= wall


@pytest.mark.parametrize("name", [name for name in ASKED if not name.startswith("no ")])
def test_the_problem_of_a_request_is_built_once(name, monkeypatch):
    built = []

    def counted(request, **how):
        built.append((request, how))
        return build_problem(request, **how)

    for module in list(sys.modules.values()):
        if vars(module).get("build_problem") is build_problem and module.__name__.startswith(
            "torchsplit_core."
        ):
            monkeypatch.setattr(module, "build_problem", counted)
    request = ASKED[name][0]
    plan(request)
    assert built.count((request, {})) == 1
    # What is relaxed or restricted on the way is another request, and no more than once either.
    assert all(built.count(one) == 1 for one in built), [how for _, how in built]
    if "pattern" in name or name in ("one stage", "program"):
        assert len(built) <= 2


class Timed:
    """Seconds of searching and building as the functions that do it are seen from inside the planner's modules."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.seconds: dict[str, float] = {}

    def watch(self, module: ModuleType, *names: str) -> None:
        """Time these functions of a module; of a search its own seconds count, the rest of it is building."""
        for name in names:
            self._patch.setattr(module, name, self._timed(name, getattr(module, name)))

    def spent_s(self, *names: str) -> float:
        """What these functions took together."""
        return sum(self.seconds[name] for name in names)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            found = function(*given, **named)
            spent = found.seconds if isinstance(found, LevelsResult) else time.perf_counter() - begun
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            return found

        return timed


def test_a_search_counts_also_where_its_plan_is_not_taken(monkeypatch):
    timed = Timed(monkeypatch)
    timed.watch(planner, "build_problem")
    timed.watch(
        exclusive_plan, "solve_patterns", "assign_colocated", "solve_objective", "build_problem", "build"
    )
    # The plan without ties is dealt out at a loss, so the program is searched as well.
    spent = plan(random_request(11, "leximin")).statistics
    assert spent.solve_s >= timed.spent_s("solve_patterns", "assign_colocated", "solve_objective")
    assert spent.build_s >= timed.spent_s("build_problem", "build")


SHARED = {
    "free": (
        published(sharing="fractional", max_tenants_per_slice=1),
        ("aggregate_shares", "pack_shares", "solve_patterns", "add_tenants", "count_tenancies"),
    ),
    "together": (
        published(1, sharing="fractional", colocations=PAIR),
        ("aggregate_shares", "count_tenancies"),
    ),
}
"""Fractional requests, and the steps beside the searches that their plans take."""


@pytest.mark.parametrize("name", SHARED)
def test_every_step_of_shared_plans_counts(name, monkeypatch):
    request, steps = SHARED[name]
    timed = Timed(monkeypatch)
    timed.watch(planner, "build_problem")
    timed.watch(fractional_plan, "aggregate_shares", "pack_shares", "count_tenancies", "solve_objective")
    timed.watch(fractional_plan, "build_problem", "build")
    timed.watch(initial_plan, "pack_shares", "solve_patterns", "add_tenants")
    timed.watch(
        exclusive_plan, "solve_patterns", "assign_colocated", "solve_objective", "build_problem", "build"
    )
    spent = plan(request).statistics
    assert set(timed.seconds) == {*steps, "solve_objective", "build_problem", "build"}
    assert spent.solve_s >= timed.spent_s(*steps, "solve_objective")
    assert spent.build_s >= timed.spent_s("build_problem", "build")
