"""The curve of small requests equals a look at every pipeline, and its check finds every kind of lie."""

import random
from dataclasses import replace
from itertools import combinations

import pytest

from tests.support.placement.decode_oracle import curve_of, is_decode
from tests.support.placement.oracle import segment_value
from tests.support.placement.requests import COEFFICIENTS, random_request
from torchsplit_core.placement.frontier import frontier
from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.values import (
    LinearThroughput,
    PlacementFrontier,
    PlacementRequest,
    RooflineGpu,
    RooflineThroughput,
    TableThroughput,
    ThroughputRow,
)

Curve = list[tuple[float, float, int]]
"""(throughput, latency in seconds, GPUs) by rising throughput."""


def every_pipeline(request: PlacementRequest) -> Curve:
    """The pipelines that no other beats, from a look at all; of equal ones the fewest GPUs."""
    model, count = request.model, len(request.gpus)
    batch_tokens = model.batch_size * model.sequence_length
    spec = request.throughput
    if is_decode(request):
        return curve_of(request)
    tokens = batch_tokens
    transfer_gib = batch_tokens * model.hidden_size * model.bytes_per_element / 2**30
    segments = SegmentModel(request)
    sets = [
        chosen
        for size in range(1, request.max_gpus_per_segment + 1)
        for chosen in combinations(range(count), size)
    ]

    def worth(chosen, layers):
        if isinstance(spec, RooflineThroughput):
            return segments.value(tuple(sorted(segments.kinds[i] for i in chosen)), layers)
        return segment_value(request, chosen, layers)

    value = {
        (chosen, layers): worth(chosen, layers) for chosen in sets for layers in range(1, model.layers + 1)
    }
    found = []

    def beaten(throughput, seconds, gpus):
        near = 1 + 1e-9
        return any(t * near >= throughput and s <= seconds * near and g <= gpus for t, s, g in found)

    def go_on(done, last, used, least, seconds):
        if least <= 0 or beaten(least, seconds, len(used)):
            return
        if done == model.layers:
            found.append((least, seconds, len(used)))
            return
        for chosen in sets:
            if used & set(chosen):
                continue
            transfers = [request.bandwidth_gib_per_s[i][j] / transfer_gib for i in last for j in chosen]
            here, passed = least, seconds
            if transfers:
                slowest = min(transfers)
                if slowest <= 0:
                    continue
                literal = request.units == "seed_literal"
                here = min(here, slowest if literal else slowest * batch_tokens)
                passed += tokens / (slowest * batch_tokens)
            for layers in range(1, model.layers - done + 1):
                speed = value[chosen, layers]
                if speed > 0:
                    go_on(
                        done + layers, chosen, used | set(chosen), min(here, speed), passed + tokens / speed
                    )

    go_on(0, (), frozenset(), float("inf"), 0.0)
    kept = []
    for throughput, seconds, _ in sorted(found, key=lambda one: (-one[0], one[1])):
        if not kept or seconds < kept[-1][1] * (1 - 1e-9):
            equal = [g for t, s, g in found if t >= throughput * (1 - 1e-9) and s <= seconds * (1 + 1e-9)]
            kept.append((throughput, seconds, min(equal)))
    return kept[::-1]


def told(curve: PlacementFrontier) -> Curve:
    return [
        (point.throughput, point.latency_s, sum(len(part.gpu_ids) for part in point.segments))
        for point in curve.points
    ]


def shaped(request: PlacementRequest, seed: int) -> PlacementRequest:
    """Links as drawn, the same in both directions, or by nodes of two, by the seed; layers long enough for segments."""
    draw = random.Random(seed)
    links, count = request.bandwidth_gib_per_s, len(request.gpus)
    if seed % 3 == 1:
        links = tuple(tuple(links[min(i, j)][max(i, j)] for j in range(count)) for i in range(count))
    elif seed % 3 == 2:
        inside, across = sorted((links[0][1] * 2 + 1e-4, draw.uniform(0.5, 1.5) * links[1][0]), reverse=True)
        links = tuple(
            tuple(inside if i // 2 == j // 2 else across for j in range(count)) for i in range(count)
        )
    return replace(request, bandwidth_gib_per_s=links)


def with_falling(request: PlacementRequest, seed: int) -> PlacementRequest:
    """Linear speeds, of which half fall with the layers: short segments are fast, and many of them slow a pass."""
    draw = random.Random(seed)
    if seed % 2:
        return request
    slower = {name: replace(found, layers=draw.uniform(-50, -10)) for name, found in COEFFICIENTS.items()}
    return replace(request, throughput=LinearThroughput(slower))


def with_table(request: PlacementRequest, seed: int) -> PlacementRequest:
    """Throughputs that fall with the layers, unevenly, and rise with the batch."""
    draw = random.Random(seed)
    rows = []
    for name in COEFFICIENTS:
        speed = draw.uniform(100, 400)
        for layers in (1, 2, 4):
            at = speed * draw.uniform(0.9, 1.1) / layers**0.7
            rows += [ThroughputRow(name, batch, layers, at * batch**0.2) for batch in (1.0, 16.0)]
    return replace(request, throughput=TableThroughput(tuple(rows)))


def with_roofline(request: PlacementRequest, seed: int) -> PlacementRequest:
    """Peaks low enough for the links to count."""
    draw = random.Random(seed)
    peaks = {name: RooflineGpu(draw.uniform(0.01, 0.1), draw.uniform(2.0, 20.0)) for name in COEFFICIENTS}
    phase = "decode" if draw.random() < 0.5 else "prefill"
    # Half of the decodes in pieces of prompts, which need the memory of a prefill.
    chunk = 1024 if phase == "decode" and seed % 4 == 3 else None
    model = replace(request.model, prefill_chunk=chunk)
    return replace(request, model=model, throughput=RooflineThroughput(phase, gpus=peaks))


def same(request: PlacementRequest) -> int:
    """Check one request; how many points its curve has."""
    curve, expected = frontier(request), every_pipeline(request)
    assert curve.complete and curve.status == ("optimal" if expected else "infeasible")
    assert all(point.proven for point in curve.points)
    found = told(curve)
    assert len(found) == len(expected)
    for (throughput, seconds, gpus), (wanted, least, fewest) in zip(found, expected, strict=True):
        assert throughput == pytest.approx(wanted, rel=1e-9)
        assert seconds == pytest.approx(least, rel=1e-9)
        assert gpus == fewest
    if expected:
        assert curve.throughput_bound == pytest.approx(expected[-1][0], rel=1e-9)
    return len(found)


@pytest.mark.parametrize("units", ["tokens_per_s", "seed_literal"])
@pytest.mark.parametrize("split", ["equal", "proportional"])
def test_curves_of_linear_speeds_equal_a_look_at_every_pipeline(units, split):
    requests = [with_falling(shaped(random_request(seed, units, split), seed), seed) for seed in range(50)]
    assert sum(same(request) > 1 for request in requests) >= 5


@pytest.mark.parametrize("change", [with_table, with_roofline])
def test_curves_of_other_speeds_equal_a_look_at_every_pipeline(change):
    several = 0
    for seed in range(50):
        split = "proportional" if change is with_roofline and seed % 2 else "equal"
        request = change(shaped(random_request(seed, "tokens_per_s", split), seed), seed)
        several += same(request) > 1
    assert several >= 15
