"""A plan held against a look at everything: sound, infeasible where nothing is sound, else as good as the best."""

from collections.abc import Collection

import pytest

from tests.support.planning.oracle import best_plan, levels_of
from tests.support.planning.shared_oracle import best_shared
from torchsplit_core.planning import plan, violations
from torchsplit_core.values import PlanOutcome, PlanRequest


def as_good_as_every_plan(request: PlanRequest, seed: int) -> tuple[PlanOutcome, float | None]:
    """The outcome with whole slices, and the bytes that the best of all plans tears apart; None where none is sound."""
    outcome, expected = plan(request), best_plan(request)
    assert not list(violations(request, outcome)), seed
    if expected is None:
        assert outcome.status == "infeasible", seed
        return outcome, None
    assert outcome.status == "optimal", seed
    assert levels_of(request, outcome) == pytest.approx(expected[0], rel=1e-6, abs=1e-9), seed
    return outcome, expected[1]


def as_good_as_every_set_of_tenants(
    request: PlanRequest, seed: int, statuses: Collection[str] = ("optimal",)
) -> tuple[PlanOutcome, tuple[float, ...] | None]:
    """The outcome with shared slices, and the best sorted vector; None where no set of tenants is sound."""
    outcome, expected = plan(request), best_shared(request)
    assert not list(violations(request, outcome)), seed
    if expected is None:
        assert outcome.status == "infeasible", seed
        return outcome, None
    assert outcome.status in statuses, seed
    assert levels_of(request, outcome) == pytest.approx(expected, rel=2e-6, abs=2e-7), seed
    return outcome, expected
