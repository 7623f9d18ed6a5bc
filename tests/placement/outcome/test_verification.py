"""The check of an outcome finds every kind of lie, and nothing in what is sound."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.placement.requests import tiny
from torchsplit_core.placement import place, violations
from torchsplit_core.placement.outcome.verification import verify
from torchsplit_core.values import (
    InternalFault,
    PlacedSegment,
    PlacementOutcome,
    PlacementRequest,
    RooflineThroughput,
)

REQUEST = tiny(2, model=replace(tiny().model, layers=6, layer_weight_gib=14.0), split="equal")
"""No GPU holds the weights of all six layers, so several segments do."""

Change = Callable[[PlacementOutcome], PlacementOutcome]


def on(number: int, **changes: Any) -> Change:
    """A segment changed."""

    def change(outcome):
        segments = list(outcome.segments)
        segments[number] = replace(segments[number], **changes)
        return replace(outcome, segments=tuple(segments))

    return change


def told(**changes: Any) -> Change:
    return lambda outcome: replace(outcome, **changes)


def faults(request: PlacementRequest, outcome: PlacementOutcome) -> str:
    return "\n".join(violations(request, outcome))


@pytest.fixture(scope="module")
def sound() -> PlacementOutcome:
    return place(REQUEST)


def test_a_pipeline_of_several_segments_is_sound(sound):
    assert len(sound.segments) >= 2 and len(sound.links) == len(sound.segments) - 1
    assert faults(REQUEST, sound) == ""


@pytest.mark.parametrize(("change", "said"), [
    (on(0, start_layer=2), "has layers 2 to"),
    (on(-1, end_layer=7), "ends with layer 7 of 6"),
    (on(0, gpu_ids=(0, 9)), "a GPU that is not in the fleet"),
    (on(0, gpu_ids=(1, 0)), "in the order of the fleet"),
    (on(0, gpu_ids=()), "has 0 GPUs"),
    (on(0, throughput=999.0), "its throughput is"),
    (on(0, batch_per_gpu=(8.0, 8.0)), "as its split wants it"),
    (on(0, memory_gib=()), "memory of every GPU"),
    (on(0, memory_gib=(1.0,)), "GiB, not 1.0"),
    (told(links=()), "do not join the segments"),
    (told(throughput=1.0), "its throughput is"),
    (told(bound=1.0), "below its throughput"),
    (told(gap=0.5), "is not that of its bound"),
    (told(gap=None), "no bound and gap"),
    (told(units="seed_literal"), "its units are"),
    (told(basis="measured"), "its basis is measured, though its speeds are linear"),
    (told(segments=(), links=()), "without segments"),
    (told(status="timeout"), "with a placement"),
    (told(status="infeasible"), "with a placement"),
])  # fmt: skip
def test_a_lie_is_found(sound, change, said):
    assert said in faults(REQUEST, change(sound))


def test_a_gpu_used_twice_and_a_segment_too_wide_are_found(sound):
    first = sound.segments[0].gpu_ids
    twice = on(1, gpu_ids=first, memory_gib=(1.0,) * len(first))(sound)
    assert "a GPU of an earlier segment" in faults(REQUEST, twice)
    wide = replace(REQUEST, max_gpus_per_segment=1)
    assert "has 2 GPUs" in faults(wide, place(tiny(2)))


def test_memory_and_links_are_reckoned_anew(sound):
    small = replace(REQUEST, gpus=tuple(replace(gpu, memory_gib=20.0) for gpu in REQUEST.gpus))
    assert "GiB and has 20" in faults(small, sound)
    cut = replace(REQUEST, bandwidth_gib_per_s=((0.0,) * 4,) * 4)
    assert "there is no link" in faults(cut, sound)
    slow = replace(REQUEST, bandwidth_gib_per_s=((0.001,) * 4,) * 4)
    assert "carries" in faults(slow, sound)


def test_types_are_not_mixed_where_they_may_not_be():
    memory, types = (2.817578125, 2.817578125), {"A100": 1, "V100": 1}
    mixed = PlacedSegment(1, 4, (1, 2), 193.1472, 8.0, memory, types, 2, 8.0)
    outcome = PlacementOutcome("optimal", 193.1472, 193.1472, 0.0, (mixed,))
    assert faults(tiny(2), outcome) == ""
    assert "mixes GPU types" in faults(tiny(2, same_type_segments=True), outcome)


def test_proportional_parts_add_up_and_beat_equal_ones():
    request = tiny(
        2, split="proportional", gpus=tiny().gpus[1:3], bandwidth_gib_per_s=((0.0, 1.0), (1.0, 0.0))
    )
    outcome = place(request)
    (segment,) = outcome.segments
    assert segment.throughput == pytest.approx(251.2189491724)
    assert faults(request, outcome) == ""
    for parts in ((8.0, 7.0), (17.0, -1.0)):
        changed = on(0, batch_per_gpu=parts, workload_per_gpu=parts)(outcome)
        assert "do not make up the batch" in faults(request, changed)
    worse = on(0, batch_per_gpu=(5.0, 11.0), workload_per_gpu=(5.0, 11.0))(outcome)
    assert "more than its own" in faults(request, worse)


def test_keys_and_values_count_in_decode():
    model = replace(tiny().model, key_value_size=1024)
    gpus = tuple(replace(gpu, type="A100-80GB") for gpu in tiny().gpus)
    request = tiny(1, model=model, gpus=gpus, throughput=RooflineThroughput("decode"))
    outcome = place(request)
    assert faults(request, outcome) == ""
    prefill = replace(request, throughput=RooflineThroughput("prefill"))
    assert "GiB, not" in faults(prefill, outcome)


def test_verify_raises_our_own_fault(sound):
    verify(REQUEST, sound)
    with pytest.raises(InternalFault, match="The placement fails its check: it"):
        verify(REQUEST, replace(sound, gap=0.5))
