"""The buttons of an infeasible request."""

from dataclasses import replace

from app.plans.infeasible import chip_help, chip_label
from tests.support.planning.requests import on_a30, simple
from torchsplit_core.planning import plan
from torchsplit_core.planning.infeasibility.repairs import Repair
from torchsplit_core.values import PlanOutcome, PlanRequest, Relaxation

RATE = "min_throughput_rps"


def infeasible(*changes: Relaxation) -> tuple[PlanRequest, PlanOutcome]:
    request = on_a30(simple("m0", {"4g.24gb": 10.0}, min_throughput_rps=20.0))
    return request, replace(plan(request, reasons=False), least_relaxation=changes)


def test_the_largest_change_is_on_the_button_first_and_a_minimum_given_up_is_called_so():
    request, outcome = infeasible(
        Relaxation("a", RATE, 10.0, 9.0), Relaxation("b", RATE, 10.0, 8.0), Relaxation("c", RATE, 10.0, 9.5),
        Relaxation("d", RATE, 1463.0, 0.0),
    )  # fmt: skip
    repair = Repair("relaxation", request, outcome)
    assert chip_label(repair, outcome).split(", ")[:2] == ["d without a minimum", "b −20\u202f%"]
    assert "Lower d's" in chip_help(repair, outcome)


def test_raised_limits_name_their_models():
    request, outcome = infeasible()
    one = Repair("limits", request, outcome, scale=5.0, models=("a",))
    assert chip_label(one, outcome) == "Limit of a × 5"
    assert chip_label(replace(one, models=("a", "b")), outcome) == "Limits of 2 models × 5"
    assert "a, b" in chip_help(replace(one, models=("a", "b")), outcome)
