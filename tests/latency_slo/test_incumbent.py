"""What a further search may take the place of: never a plan by none, nor a proof by an open end."""

from __future__ import annotations

import pytest

from tests.support.app.values import plan, request
from torchsplit_core.latency_slo.incumbent import update_incumbent
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.values import PlanOutcome, PlanStatistics

ASKED = request()


def without_plan(status: str) -> PlanOutcome:
    return no_plan(ASKED, status, PlanStatistics(0.0, 0.0, 0.0, "none"))  # type: ignore[arg-type]


@pytest.mark.parametrize("incumbent", [plan(ASKED, "feasible"), plan(ASKED)], ids=["feasible", "optimal"])
@pytest.mark.parametrize("status", ["timeout", "infeasible"])
def test_a_plan_is_never_given_up_for_none(incumbent: PlanOutcome, status: str) -> None:
    assert update_incumbent(ASKED, incumbent, without_plan(status)) is incumbent


def test_a_proof_that_there_is_no_plan_outlasts_a_search_that_ran_out_of_time() -> None:
    proof = without_plan("infeasible")
    assert update_incumbent(ASKED, proof, without_plan("timeout")) is proof
    assert update_incumbent(ASKED, without_plan("timeout"), proof) is proof


@pytest.mark.parametrize("status", ["timeout", "infeasible"])
def test_any_plan_is_better_than_none(status: str) -> None:
    feasible = plan(ASKED, "feasible")
    assert update_incumbent(ASKED, without_plan(status), feasible) is feasible
