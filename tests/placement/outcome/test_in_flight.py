"""Decodes and cut layers rechecked from the request alone: every lie about them is found."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.placement.requests import PEAKS, tiny
from torchsplit_core.files import read_text, write_text
from torchsplit_core.placement import place, violations
from torchsplit_core.placement.frontier import frontier
from torchsplit_core.values import PlacementOutcome, PlacementRequest, RooflineThroughput

SIZES = replace(tiny().model, layers=6, layer_weight_gib=14.0, key_value_size=1024)


def decode(split: str = "equal", **sizes: Any) -> PlacementRequest:
    """No GPU holds the weights of all six layers."""
    throughput = RooflineThroughput("decode", gpus=PEAKS)
    return tiny(2, model=replace(SIZES, **sizes), throughput=throughput, split=split)


def faults(request: PlacementRequest, outcome: PlacementOutcome) -> str:
    return "\n".join(violations(request, outcome))


@pytest.mark.parametrize("split", ["equal", "proportional", "tensor"])
def test_a_full_pipeline_has_a_batch_in_flight_for_each_segment(split):
    request = decode(split)
    outcome = place(request)
    assert faults(request, outcome) == "" and len(outcome.segments) > 1
    assert outcome.sequences_in_flight == 16 * len(outcome.segments)
    # The same pipeline with one batch under way makes a batch of tokens a pass.
    few = replace(request, model=replace(request.model, sequences_in_flight=16))
    told = faults(few, outcome)
    assert "16 sequences are in flight, not" in told and "GiB, not" in told
    assert outcome.latency_s is not None and f"its throughput is {16 / outcome.latency_s}"[:30] in told
    assert (place(few).throughput or 0.0) < (outcome.throughput or 0.0)


@pytest.mark.parametrize("in_flight", [16, 32, 64])
def test_the_time_per_token_is_the_pass_or_the_turns_of_the_slowest_segment(in_flight):
    outcome = place(decode(sequences_in_flight=in_flight))
    rates = [part.throughput for part in (*outcome.segments, *outcome.links)]
    assert outcome.latency_s is not None and outcome.seconds_per_token is not None
    # A batch comes back to the slowest part when all the others in flight have had their turn there.
    turns = in_flight / 16 * max(16 / rate for rate in rates)
    assert outcome.seconds_per_token == pytest.approx(max(outcome.latency_s, turns))


def test_without_sequences_in_flight_there_is_no_time_per_token():
    assert place(tiny(2)).seconds_per_token is None


def test_more_sequences_than_memory_holds_are_found():
    request = decode()
    outcome = place(request)
    per_sequence = 2 * 1024 * 2048 * 2 / 2**30
    many = int(80 / per_sequence)
    crowded = replace(request, model=replace(request.model, sequences_in_flight=many))
    assert "GiB and has" in faults(crowded, outcome)
    assert place(crowded).status == "infeasible"
    # The activations of whole prompts beside them take memory too.
    chunked = replace(request, model=replace(request.model, prefill_chunk=2048))
    assert "GiB, not" in faults(chunked, outcome)


def test_a_throughput_above_what_a_pass_makes_is_found():
    request = decode(sequences_in_flight=16)
    outcome = place(request)
    assert outcome.throughput is not None and outcome.latency_s is not None
    assert outcome.throughput == pytest.approx(16 / outcome.latency_s)
    least = min(part.throughput for part in outcome.segments)
    assert least > 1.1 * outcome.throughput
    faster = replace(outcome, throughput=least, bound=least)
    assert f"its throughput is {outcome.throughput}"[:25] in faults(request, faster)


def test_cut_layers_are_reckoned_over_the_slowest_link_inside():
    request = decode("tensor", layer_weight_gib=30.0, layers=4)
    outcome = place(request)
    assert faults(request, outcome) == ""
    wide = next(part for part in outcome.segments if part.num_gpus == 2)
    assert wide.batch_per_gpu == 16.0 and wide.workload_per_gpu == 16.0
    order = [gpu.id for gpu in request.gpus]
    slow = [list(row) for row in request.bandwidth_gib_per_s]
    first, second = (order.index(gpu) for gpu in wide.gpu_ids)
    slow[first][second] = 0.5
    slower = replace(request, bandwidth_gib_per_s=tuple(map(tuple, slow)))
    assert "its throughput is" in faults(slower, outcome)
    slow[second][first] = 0.0
    cut_off = replace(request, bandwidth_gib_per_s=tuple(map(tuple, slow)))
    assert "its throughput is 0.0" in faults(cut_off, outcome)
    alone = replace(outcome.segments[0], batch_per_gpu=8.0, workload_per_gpu=8.0)
    assert "do not work on the whole batch" in faults(
        request, replace(outcome, segments=(alone, *outcome.segments[1:]))
    )


def test_what_segments_say_twice_agrees():
    request = tiny(2)
    outcome = place(request)
    (segment,) = outcome.segments
    for change, said in (
        ({"gpu_types": {"V100": 2}}, "has other types of GPUs"),
        ({"num_gpus": 3}, "in two ways"),
        ({"workload_per_gpu": 16.0}, "in two ways"),
    ):
        assert said in faults(request, replace(outcome, segments=(replace(segment, **change),)))


def test_files_have_the_additions_only_where_they_are_used():
    request = decode("tensor", sequences_in_flight=64, prefill_chunk=8)
    outcome, curve = place(request), frontier(request)
    for value in (request, outcome, curve):
        for version in (1, 2):
            assert read_text(write_text(value, version))[1] == value
    assert '"sequences_in_flight": 64' in write_text(outcome) and '"prefill_chunk": 8' in write_text(request)
    plain, answer = tiny(2), place(tiny(2))
    for text in (write_text(plain), write_text(answer), write_text(frontier(plain))):
        assert "in_flight" not in text and "prefill_chunk" not in text
    assert '"gpu_types"' in write_text(answer)
    # Files of before have no such fields in their segments, and are written as they were.
    (segment,) = answer.segments
    old = replace(answer, segments=(replace(segment, gpu_types={}, num_gpus=0, workload_per_gpu=0.0),))
    assert "num_gpus" not in write_text(old) and read_text(write_text(old))[1] == old


def test_several_pipelines_have_sequences_of_their_own():
    gpus = tuple(replace(tiny().gpus[0], id=number) for number in range(4))
    request = replace(
        decode(layers=4, layer_weight_gib=30.0), gpus=gpus, bandwidth_gib_per_s=((400.0,) * 4,) * 4,
        max_gpus_per_segment=1, max_replicas=2,
    )  # fmt: skip
    outcome = place(request)
    assert faults(request, outcome) == "" and outcome.status == "optimal"
    assert [replica.sequences_in_flight for replica in outcome.replicas] == [
        16 * len(replica.segments) for replica in outcome.replicas
    ]
    assert outcome.sequences_in_flight == sum(one.sequences_in_flight or 0 for one in outcome.replicas)
    assert "not those of its pipelines" in faults(request, replace(outcome, sequences_in_flight=1))
