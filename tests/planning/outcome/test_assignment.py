"""Shares of a formulation on slices."""

import pytest

from tests.support.planning.requests import A30, on_a30, whole_model
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.solution import Solution
from torchsplit_core.planning.outcome.assignment import assign_shares
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.values import Point


def test_two_points_of_a_model_on_one_slice_are_the_quicker_one():
    """A slice with a model twice could be neither simulated nor deployed: both would have one name."""
    points = (
        Point(A30, "4g.24gb", 1, 40.0, 5.0, memory_gib=1.0), Point(A30, "4g.24gb", 4, 60.0, 30.0, memory_gib=2.0)
    )  # fmt: skip
    models = (whole_model("a", points, demand_rps=10.0, max_latency_ms=90.0), whole_model("b", points[:1]))
    problem = build_problem(on_a30(*models, sharing="fractional"), per_gpu=True)
    formulation = build(problem, "concrete")
    layout = next(
        n for n, layout in enumerate(problem.groups[0].layouts) if layout.usable_counts.get("4g.24gb")
    )
    uses = [n for n, use in enumerate(formulation.slice_uses) if use.choice.profile == "4g.24gb"]
    amounts = dict(zip(uses, (0.3, 0.5, 0.2), strict=False))
    (slice_,) = assign_shares(formulation, Solution({(0, layout): 1}, amounts, (), {})).slices
    assert len(slice_.tenants) == len({choice.model for choice, _ in slice_.tenants})
    shares = {choice.model: (choice.point.batch_size, share) for choice, share in slice_.tenants}
    twice = [formulation.slice_uses[number].choice for number in uses]
    assert [choice.model for choice in twice].count(0) == 2
    assert shares[0] == (
        4,
        pytest.approx(sum(s for n, s in amounts.items() if formulation.slice_uses[n].choice.model == 0)),
    )
