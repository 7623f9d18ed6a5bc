"""The curve of what changing saves and loses."""

from dataclasses import replace

import pytest

from tests.day_plans.test_day_planner import two_models
from tests.support.day_plans.days import with_windows
from tests.support.planning.requests import on_a30, simple
from torchsplit_core import workflow
from torchsplit_core.day_plans.change_curve import ChangePoint, change_curve
from torchsplit_core.values import InputFault, Objective, SolverOptions


def test_looser_limits_save_more_and_each_is_kept():
    points = []
    curve = workflow.day_curve(two_models(), (0, 1, None), on_point=points.append)
    assert list(curve) == points and [point.most_touched for point in curve] == [0, 1, None]
    assert [point.saved_gpu_hours for point in curve] == [0.0, pytest.approx(11.5), pytest.approx(11.5)]
    assert curve[0].lost_requests == 0.0
    for point in curve[:2]:
        touched = [window.transition.touched_gpus for window in point.outcome.windows]
        assert max(touched) <= point.most_touched


def test_a_point_has_its_part_of_the_time():
    asked = []
    day = workflow.plan_day(two_models())
    change_curve(
        two_models(solver=SolverOptions(9.0)), (0, 1, 2), lambda request: asked.append(request) or day
    )
    assert [request.solver.time_limit_s for request in asked] == [3.0] * 3


def test_what_is_wrong_with_the_request_is_no_point():
    with pytest.raises(InputFault, match="no demand_windows"):
        workflow.day_curve(on_a30(simple("a", {"1g.6gb": 1.0})), (0,))
    with pytest.raises(InputFault, match="0 limits"):
        workflow.day_curve(two_models(), ())


def test_where_windows_cannot_follow_nothing_is_known():
    def refused(request):
        raise InputFault("objective.max_touched_gpus", "is 1, and 2 change", "Allow as many.")

    (point,) = change_curve(two_models(), (1,), refused)
    assert point == ChangePoint(1, None)
    assert (point.saved_gpu_hours, point.lost_requests) == (None, None)


def test_without_a_static_plan_nothing_is_saved_against():
    models = [with_windows(simple(name, {"4g.24gb": 40.0}), *figures) for name, figures in (
        ("a", ((40.0, 40.0), (0.0, None))), ("b", ((0.0, None), (40.0, 40.0))),
    )]  # fmt: skip
    request = replace(on_a30(*models), objective=Objective("min_gpus"))
    (point,) = workflow.day_curve(request, (None,))
    assert point.outcome is not None and point.saved_gpu_hours is None
