"""Explanations as the tests ask for them: small requests, and the one statement sought among all."""

import time

import pytest

from torchsplit_core.planning import plan
from torchsplit_core.planning.explanation.explain import explain_plan
from torchsplit_core.values import ChangeEffect, PlanExplanation, PlanRequest

LONG_S = 60.0
"""Seconds for an explanation here: every question of these small requests is answered long before."""


def explain(request: PlanRequest) -> PlanExplanation:
    """The explanation of the request's plan, with time for all its questions."""
    explanation = explain_plan(request, plan(request), time.perf_counter() + LONG_S)
    assert explanation is not None
    return explanation


def changed(
    found: PlanExplanation, what: str, model: str | None = None, new: float | None = None
) -> ChangeEffect:
    """The one change of this kind, model and new value."""
    (one,) = [
        change
        for change in found.changes
        if change.what == what and change.model == model and (new is None or change.new == pytest.approx(new))
    ]
    return one
