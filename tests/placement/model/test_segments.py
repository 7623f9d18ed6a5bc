"""The speed of a GPU by each model, the division of the batch, memory, and the instance that a search reads."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.support.placement.requests import COEFFICIENTS, tiny
from torchsplit_core.placement.model.batch_split import proportional_parts
from torchsplit_core.placement.model.memory import largest_part, needed_gib
from torchsplit_core.placement.model.segments import SegmentModel, build_instance, link_values
from torchsplit_core.placement.model.speed import LinearSpeed, TableSpeed, speeds_by_type
from torchsplit_core.values import (
    LinearCoefficients,
    PlacementGpu,
    PlacementModel,
    PlacementRequest,
    RooflineGpu,
    RooflineThroughput,
    TableThroughput,
    ThroughputRow,
)

UPHILL = LinearSpeed(COEFFICIENTS["A100"], 2048)
OVERLOADED = LinearSpeed(LinearCoefficients(-0.02, 3.0, 0.5, 10.0), 2048)
"""Its constant is negative: small parts creep at 1 token/s, larger ones take less time in all."""
JAGGED = TableSpeed((1.0, 2.0, 4.0, 8.0), (1, 4), ((0.3, 0.9), (0.2, 0.6), (0.7, 2.1), (0.5, 1.5)))
"""Times that fall from one measured batch to the next, twice."""


def table_of(*rows: tuple[float, int, float], name: str = "A100") -> TableThroughput:
    return TableThroughput(tuple(ThroughputRow(name, batch, layers, rate) for batch, layers, rate in rows))


def test_the_linear_rate_is_the_published_one():
    assert UPHILL.rate(16, 4) == pytest.approx(217.52)
    assert OVERLOADED.rate(8, 1) == 1.0


def test_a_table_is_linear_in_time_between_its_rows():
    spec = table_of((2, 1, 200.0), (4, 1, 300.0), (2, 3, 50.0), (4, 3, 80.0))
    gpus = (PlacementGpu(0, "A100", 80.0),)
    speed = speeds_by_type(tiny(1, throughput=spec, gpus=gpus))["A100"]
    assert speed.rate(4, 3) == pytest.approx(80.0)
    # Times 0.04 and 0.05 at two layers: the mean of 0.01 with 0.04, and of 0.0133 with 0.05.
    assert speed.rate(2, 2) == pytest.approx(2 / 0.025)
    assert speed.rate(3, 2) == pytest.approx(3 / ((0.025 + (4 / 300 + 4 / 80) / 2) / 2))
    # Below the smallest batch its time; above the largest batch and layer count in proportion.
    assert speed.rate(1, 1) == pytest.approx(100.0)
    assert speed.rate(8, 1) == pytest.approx(300.0)
    assert speed.rate(4, 6) == pytest.approx(40.0)


@pytest.mark.parametrize("speed", [UPHILL, OVERLOADED, JAGGED])
@pytest.mark.parametrize("limit", [0.005, 0.1, 0.4, 0.65, 1.0, 7.0, 30.0])
def test_parts_within_a_limit_are_those_whose_time_is(speed, limit):
    found = speed.parts_within(limit, 2)
    for part in np.linspace(0.01, 40.0, 1600).tolist():
        inside = any(low < part <= high for low, high in found)
        time = part / speed.rate(part, 2)
        if abs(time - limit) > 1e-9:
            assert inside == (time < limit), (part, time)


@pytest.mark.parametrize(("one", "other", "caps"), [
    (UPHILL, LinearSpeed(COEFFICIENTS["T4"], 2048), (16.0, 16.0)),
    (UPHILL, LinearSpeed(COEFFICIENTS["T4"], 2048), (9.0, 16.0)),
    (UPHILL, OVERLOADED, (16.0, 16.0)),
    (OVERLOADED, OVERLOADED, (16.0, 16.0)),
    (JAGGED, UPHILL, (16.0, 0.3)),
    (JAGGED, JAGGED, (16.0, 16.0)),
    (JAGGED, OVERLOADED, (16.0, 7.5)),
])  # fmt: skip
@pytest.mark.parametrize("batch", [4.0, 9.0, 16.0])
def test_two_parts_equal_a_fine_grid(one, other, caps, batch):
    parts = proportional_parts((one, other), caps, batch, 3)
    assert parts is not None and min(parts) > 0 and sum(parts) == pytest.approx(batch, rel=1e-12)
    assert all(part <= cap * (1 + 1e-12) for part, cap in zip(parts, caps, strict=True))
    reached = max(part / speed.rate(part, 3) for part, speed in zip(parts, (one, other), strict=True))
    grid = np.linspace(0.0, batch, 40001)[1:-1]
    allowed = grid[(grid <= caps[0]) & (batch - grid <= caps[1])].tolist()
    best = min(max(x / one.rate(x, 3), (batch - x) / other.rate(batch - x, 3)) for x in allowed)
    # No grid point beats it, and it is not better than its nearest one by more than a step can make.
    assert reached <= best * (1 + 1e-9)
    assert reached >= best * (1 - 5e-3)


@pytest.mark.parametrize("batch", [12.0, 40.0])
def test_three_parts_equal_a_grid_and_are_right_to_a_billionth(batch):
    trio = (UPHILL, JAGGED, OVERLOADED)
    parts = proportional_parts(trio, (batch,) * 3, batch, 1)
    assert parts is not None
    reached = max(part / speed.rate(part, 1) for part, speed in zip(parts, trio, strict=True))
    steps = np.linspace(0.0, batch, 251)[1:-1].tolist()
    best = min(
        max(x / trio[0].rate(x, 1), y / trio[1].rate(y, 1), (batch - x - y) / trio[2].rate(batch - x - y, 1))
        for x, y in itertools.product(steps, steps)
        if x + y < batch
    )
    assert best * (1 - 4e-2) <= reached <= best * (1 + 1e-9)
    # Within a time a billionth shorter, one GPU manages nothing or all of them together less than the batch.
    lower = reached * (1 - 1e-9)
    highs = [[high for _, high in speed.parts_within(lower, 1)] for speed in trio]
    sums = [sum(min(batch, high) for high in chosen) for chosen in itertools.product(*highs)]
    assert max(sums, default=0.0) < batch


def test_equal_gpus_get_equal_parts_and_no_room_gives_none():
    parts = proportional_parts((UPHILL,) * 3, (9.0,) * 3, 12.0, 2)
    assert parts == pytest.approx((4.0, 4.0, 4.0))
    assert proportional_parts((UPHILL, UPHILL), (5.0, 5.0), 12.0, 2) is None
    assert proportional_parts((UPHILL, UPHILL), (50.0, 0.0), 12.0, 2) is None
    assert proportional_parts((UPHILL, UPHILL), (6.0, 6.0), 12.0, 2) == (6.0, 6.0)


def test_proportional_parts_never_lose_to_equal_ones():
    for layers, kinds in itertools.product((1, 3), ((0, 1), (0, 0, 1), (0, 1, 1), (0, 0, 1, 1))):
        equal = SegmentModel(tiny(4)).value(kinds, layers)
        assert SegmentModel(tiny(4, split="proportional")).value(kinds, layers) >= equal * (1 - 1e-12)


def test_memory_is_that_of_the_contract():
    request = tiny()
    expected = 3 * 0.5 + 1.15 * 8 * 2048 * (3 * 4096 + 11008) * 2 / 2**30
    assert needed_gib(request, 3, 8.0) == pytest.approx(expected, rel=1e-14)
    assert needed_gib(request, 3, largest_part(request, 3, 32.0)) == pytest.approx(32.0)


def test_a_segment_too_large_or_of_two_types_is_worth_nothing():
    model = replace(tiny().model, layer_weight_gib=20.0)
    held = SegmentModel(tiny(model=model))
    assert held.value((1,), 1) > 0 and held.value((1,), 2) == 0
    assert held.value((0, 1), 2) == 0 and held.value((0, 0), 2) > 0
    one_type = SegmentModel(tiny(same_type_segments=True))
    assert one_type.value((0, 1), 1) == 0 and one_type.value((1, 1), 1) > 0


def test_gpus_of_one_type_with_other_memory_are_another_kind():
    gpus = (*tiny().gpus[:3], replace(tiny().gpus[3], memory_gib=16.0))
    held = SegmentModel(tiny(gpus=gpus, same_type_segments=True))
    assert held.kinds == (0, 0, 1, 2)
    assert held.value((1, 2), 1) > 0


def test_links_in_both_units():
    assert link_values(tiny(units="seed_literal"))[0].tolist() == pytest.approx([0, 1600, 800, 800])
    assert link_values(tiny())[0, 1] == pytest.approx(1600 * 16 * 2048)
    instance = build_instance(SegmentModel(tiny(9)))
    assert (instance.layers, instance.max_gpus, instance.kinds) == (4, 4, (0, 0, 1, 1))


DECODER = PlacementModel(
    80, 8192, 28672, 1.6, 2048, 32, 2.0, key_value_size=1024, active_layer_weight_gib=None
)


def roofline(phase: str, **changes: object) -> PlacementRequest:
    spec = RooflineThroughput(phase, **changes)  # type: ignore[arg-type]
    gpus = (PlacementGpu("a", "H100-SXM5-80GB", 80.0), PlacementGpu("b", "A100-80GB", 80.0))
    return tiny(1, model=DECODER, gpus=gpus, throughput=spec, bandwidth_gib_per_s=((0.0, 50.0), (50.0, 0.0)))


def test_decode_is_bound_by_memory_and_prefill_by_arithmetic():
    decode = speeds_by_type(roofline("decode", compute_efficiency=0.5, memory_efficiency=0.8))["A100-80GB"]
    # Weights once and the keys and values of 32 sequences, at 80 % of 2,039 GB/s.
    cache = 32 * 2 * 1024 * 2048 * 2
    state = 32 * 2 * 8192 * 2
    seconds = 10 * (1.6 * 2**30 + cache + state) / (0.8 * 2039e9)
    assert decode.rate(32, 10) == pytest.approx(32 / seconds)
    prefill = speeds_by_type(roofline("prefill", compute_efficiency=0.5, memory_efficiency=0.8))["A100-80GB"]
    flops = 2048 * (2 * 1.6 * 2**30 / 2 + 4 * 8192 * 1024)
    assert prefill.rate(32, 10) == pytest.approx(2048 / (10 * flops / (0.5 * 312e12)))
    assert prefill.rate(32, 10) > 3 * decode.rate(32, 10)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_roofline_parts_turn_the_rate_round(phase):
    speed = speeds_by_type(roofline(phase))["H100-SXM5-80GB"]
    for part in (0.5, 4.0, 32.0):
        time = part / speed.rate(part, 8)
        ((low, high),) = speed.parts_within(time * (1 + 1e-9), 8)
        assert low == 0 and high >= part
    assert speed.parts_within(1e-12, 8) == ()


def test_keys_and_values_count_in_the_memory_of_decode_alone():
    width = 1.15 * (3 * 8192 + 28672) * 2 / 2**30
    keys = 10 * 2 * 1024 * 2048 * 2 / 2**30
    bare = 10 * roofline("prefill").model.layer_weight_gib
    assert needed_gib(roofline("prefill"), 10, 32.0) == pytest.approx(bare + 32 * 2048 * width)
    # One token of each, and of four segments four batches under way.
    decode = roofline("decode")
    assert needed_gib(decode, 10, 32.0) == pytest.approx(bare + 32 * (width + keys))
    assert needed_gib(decode, 10, 32.0, 4) == pytest.approx(bare + 32 * (width + 4 * keys))
    # Asked for: 96 sequences, of which a half of the batch has a half; and a piece of a prompt beside them.
    model = replace(decode.model, sequences_in_flight=96, prefill_chunk=512)
    asked = replace(decode, model=model)
    assert needed_gib(asked, 10, 16.0, 4) == pytest.approx(bare + 16 * 512 * width + 48 * keys)
    assert needed_gib(asked, 10, largest_part(asked, 10, 64.0, 4), 4) == pytest.approx(64.0)


def test_peaks_of_ones_own_go_before_the_catalogue():
    given = speeds_by_type(roofline("prefill", gpus={"A100-80GB": RooflineGpu(624.0, 2039.0)}))["A100-80GB"]
    assert given.rate(32, 10) == pytest.approx(
        2 * speeds_by_type(roofline("prefill"))["A100-80GB"].rate(32, 10)
    )
