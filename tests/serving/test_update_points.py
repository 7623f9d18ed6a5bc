"""Points measured while serving, in the place of those that a plan was made of."""

from dataclasses import replace

from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core.serving.load_test.update_points import replace_points
from torchsplit_core.values.serving.measurement import MeasuredPoint, Measurement

PLAN, REQUEST = cpu_plan([Placed("bert", batch_size=4)], {"bert": "sample:bert", "ocr": "sample:ocr"})
MEASURED = MeasuredPoint("bert", "whole", "whole", "CPU", "1c", 4, 1, 640.0, 7.0, 600.0, 650.0, 50)


def measurement(*points: MeasuredPoint) -> Measurement:
    return Measurement(PLAN.request_sha256, 10.0, 1.0, "here", (), points=points)


def test_a_point_takes_the_place_of_the_planned_one_and_another_batch_size_is_added():
    updated = replace_points(REQUEST, measurement(MEASURED))
    (one, four) = updated.models[0].variants[0].stages[0].points
    assert one == REQUEST.models[0].variants[0].stages[0].points[0]
    assert (four.throughput_rps, four.latency_ms, four.low_rps, four.high_rps) == (640.0, 7.0, 600.0, 650.0)
    assert (four.basis, four.memory_gib) == ("measured", 0.1)
    assert updated.models[1] == REQUEST.models[1]
    updated = replace_points(REQUEST, measurement(replace(MEASURED, batch_size=3)))
    points = updated.models[0].variants[0].stages[0].points
    assert [point.batch_size for point in points] == [1, 4, 3] and points[2].memory_gib == 0.1
    assert replace_points(REQUEST, measurement()) == REQUEST
    assert replace_points(REQUEST, measurement(replace(MEASURED, stage="other"))) == REQUEST
