"""A trace against a day's plans: every moment is held against its own window's throughput."""

import math

import pytest

from torchsplit_core import files
from torchsplit_core.day_plans.trace_check import check_trace, describe_check
from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace

DAY, REQUEST = "examples/days/three_windows.json", "examples/days/three_windows_request.json"


@pytest.fixture(scope="module")
def planned():
    return files.read_file(REQUEST)[1], files.read_file(DAY)[1]


def trace(**rates):
    return DemandTrace(0, 3600, {name: tuple(values) for name, values in rates.items()})


def served(outcome, window, model):
    (plan,) = [item.plan for item in outcome.windows if item.name == window]
    return next(item.throughput_rps for item in plan.models if item.name == model)


def test_moments_are_held_by_the_plan_of_their_window(planned):
    request, outcome = planned
    night, day = (served(outcome, window, "resnet50") for window in ("night", "day"))
    assert day > night
    # 06:00 is night, 07:00 day: as much as night serves is held in both, more only by day.
    rates = [night] * 24
    held = check_trace(request, outcome, trace(resnet50=rates))
    assert (held.moments, held.held) == (24, 24) and held.worst_ratio == pytest.approx(1.0)
    assert "at each of its 24 moments" in describe_check(held)
    above = check_trace(request, outcome, trace(resnet50=[*rates[:6], day, day, *rates[8:]]))
    assert above.held == 23 and (above.worst_model, above.worst_minute) == ("resnet50", 6 * 60)
    assert above.worst_ratio == pytest.approx(day / night)
    text = describe_check(above)
    assert "At 1 of the trace's 24 moments" in text and "resnet50 at 06:00 UTC" in text


def test_holes_are_no_moments_and_a_model_that_nothing_serves_is_said(planned):
    request, outcome = planned
    assert check_trace(request, outcome, trace(bert=[None] * 3, ocr=[1.0] * 3)) is None
    unknown = check_trace(request, outcome, trace(bert=[None, 1.0], other=[5.0, 5.0]))
    assert (unknown.moments, unknown.held) == (1, 0) and math.isinf(unknown.worst_ratio)
    assert "which its window does not serve" in describe_check(unknown)
