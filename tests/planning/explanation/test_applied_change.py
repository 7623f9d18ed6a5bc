"""A change that was examined is made: what the explanation reckoned is what a plan of the changed request reaches."""

import time
from dataclasses import replace

import pytest

from tests.support.app.values import request
from torchsplit_core import workflow
from torchsplit_core.planning.explanation.applied_change import apply_effect
from torchsplit_core.planning.explanation.explain import explain_plan
from torchsplit_core.values import ChangeEffect, FleetEntry


def gpu(old: int, new: int, gpu_id: str) -> ChangeEffect:
    return ChangeEffect("gpu", "better", old, new, gpu_type="A100-80GB", gpu_id=gpu_id)


def test_what_it_said_is_what_the_changed_request_gives():
    explanation = explain_plan(request(), workflow.plan(request()), time.perf_counter() + 60)
    assert explanation is not None
    better = [one for one in explanation.changes if one.effect == "better" and one.level in (1, None)]
    assert better
    for change in better:
        asked = apply_effect(request(), change)
        assert asked is not None and asked != request()
        assert workflow.plan(asked).objective.sorted_normalised[0] == pytest.approx(change.value_after)


def test_a_gpu_goes_to_the_entry_that_it_is_like():
    fleet = (FleetEntry("A100-80GB", count=2), FleetEntry("A100-80GB", "n/g", node="n"))
    asked = replace(request(), gpus=fleet)
    ids = ("gpu0", "gpu1", "n/g")
    more = apply_effect(asked, gpu(2, 3, ids[1]))
    assert more is not None and more.gpus == (FleetEntry("A100-80GB", count=3), fleet[1])
    like = apply_effect(asked, gpu(1, 2, ids[2]))
    assert like is not None and like.gpus == (*fleet, FleetEntry("A100-80GB", node="n"))
    fewer = apply_effect(asked, gpu(1, 0, ids[2]))
    assert fewer is not None and fewer.gpus == fleet[:1]
    assert apply_effect(asked, gpu(1, 2, "gone")) is None
    assert apply_effect(request(), gpu(1, 0, "gpu0")) is None


def test_demands_are_eased_or_dropped_and_what_no_edit_makes_is_none():
    eased = apply_effect(request(), ChangeEffect("max_latency_ms", "better", 80.0, 88.0, model="bert"))
    assert eased is not None and [model.max_latency_ms for model in eased.models] == [88.0, 80.0]
    dropped = apply_effect(request(), ChangeEffect("max_latency_ms", "better", 80.0, None, model="ocr"))
    assert dropped is not None and dropped.models[1].max_latency_ms is None
    capped = replace(
        request(), models=tuple(replace(model, cap_at_demand=True) for model in request().models)
    )
    free = apply_effect(capped, ChangeEffect("cap_at_demand", "better", 200.0, model="bert"))
    assert free is not None and [model.cap_at_demand for model in free.models] == [False, True]
    assert apply_effect(request(), ChangeEffect("link", "better", 1.0, 2.0)) is None
