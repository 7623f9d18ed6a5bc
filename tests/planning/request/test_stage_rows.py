"""Rows of stages: time by the shares of each batch size, memory of weights, activations and context, own rows first."""

from dataclasses import replace

import pytest

from tests.support.planning.requests import A30
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.request.fleet_text import parse_fleet
from torchsplit_core.planning.request.stage_rows import MIN_SHARE, stage_rows
from torchsplit_core.values import (
    InputFault,
    MemoryParts,
    NodeProfile,
    PartitionCandidate,
    PartitionOutcome,
    Profile,
    ProfileRow,
    Variant,
)

GIB = 2**30
NAMES = ("cut1.1of2", "cut1.2of2")
BATCHES = (1, 2, 8, 64)


def node(name: str, small: float, large: float, peak_gib: float) -> NodeProfile:
    """A node with its shares at batch 2 and at batch 16."""
    return NodeProfile(name, small, 0, int(peak_gib * GIB), {2: small, 16: large})


NODES = (node("a", 0.25, 0.5, 1.0), node("b", 0.25, 0.25, 4.0), node("c", 0.5, 0.25, 2.0))
CANDIDATE = PartitionCandidate(
    stages=(("x", "a", "b"), ("c",)), loads_ms=(1.0, 1.0), max_load_ms=1.0, cut_bytes=(8,),
    peak_memory_bytes=(5 * GIB, 5 * GIB), weight_bytes=(1 * GIB, 3 * GIB),
)  # fmt: skip
"""Of the 4 GiB of activations of the whole model the first stage has all, the second half."""


def whole(batch: int, told: bool = True) -> ProfileRow:
    """4 GiB of weights, half a GiB of context and 2 GiB of activations for each request of the batch."""
    parts = MemoryParts(4.0, 1.5 * batch, 0.5 * batch, 0.5, "measured") if told else None
    return ProfileRow(
        *("whole", A30, "4g.24gb", batch, 1, 100.0, 10.0 * batch, 90.0, 110.0, 4.5 + 2 * batch, "measured"),
        device="gpu0",
        memory_parts_gib=parts,
    )


def profile(*rows: ProfileRow) -> Profile:
    return Profile("sample:bert", "h", rows=rows, nodes=NODES)


WHOLE = tuple(map(whole, BATCHES))
FIRST, SECOND = stage_rows(profile(*WHOLE), WHOLE, CANDIDATE, NAMES)


def test_time_is_shared_out_whole_at_every_batch_size():
    for row, one, two in zip(WHOLE, FIRST, SECOND, strict=True):
        assert one.latency_ms + two.latency_ms == pytest.approx(row.latency_ms)
        assert 1 / one.throughput_rps + 1 / two.throughput_rps == pytest.approx(1 / row.throughput_rps)
        assert (one.stage, two.stage) == NAMES
    # Batch 1, 2 are nearest to 2; 8 is nearer to 16 in ratio, as 64 is.
    assert [one.latency_ms / row.latency_ms for row, one in zip(WHOLE, FIRST, strict=True)] == pytest.approx(
        [0.5, 0.5, 0.75, 0.75]
    )


def test_intervals_go_along_and_what_was_measured_of_the_whole_is_not_claimed_of_a_stage():
    first = FIRST[0]
    assert (first.low_rps, first.high_rps) == (180.0, 220.0) and first.basis == "estimated"
    assert first.device is None and first.percentiles_ms is None
    assert first.memory_parts_gib is not None and first.memory_parts_gib.basis == "estimated"
    bare = replace(WHOLE[0], low_rps=None, high_rps=None)
    assert stage_rows(profile(bare), [bare], CANDIDATE, NAMES)[0][0].low_rps is None


@pytest.mark.parametrize("told", [True, False])
def test_memory_is_weights_and_a_share_of_the_activations_and_a_context_each(told):
    """Rows without their parts take weights and context from a row that has them."""
    rows = tuple(whole(batch, told) for batch in BATCHES)
    first, second = stage_rows(profile(*rows, WHOLE[0]), rows, CANDIDATE, NAMES)
    assert [row.memory_gib for row in first] == pytest.approx([1 + 2 * b + 0.5 for b in BATCHES])
    assert [row.memory_gib for row in second] == pytest.approx([3 + b + 0.5 for b in BATCHES])


def test_memory_never_falls_below_the_weights_nor_with_the_batch():
    for rows, weights in ((FIRST, 1.0), (SECOND, 3.0)):
        memory = [row.memory_gib or 0.0 for row in rows]
        assert memory == sorted(memory) and memory[0] >= weights
    low = replace(WHOLE[0], memory_gib=0.5, memory_parts_gib=None)
    (found, *_), _ = stage_rows(profile(low, *WHOLE), [low], CANDIDATE, NAMES)
    assert found.memory_gib == pytest.approx(1.5)


def test_memory_without_parts_is_weights_and_the_context_that_its_device_has():
    processor = replace(WHOLE[1], gpu_type="CPU", profile=None, memory_gib=8.0, memory_parts_gib=None)
    unknown = replace(WHOLE[1], memory_gib=None, memory_parts_gib=None)
    first, _ = stage_rows(profile(processor, *WHOLE), [processor, unknown], CANDIDATE, NAMES)
    assert first[0].memory_gib == pytest.approx(1 + 4.0)
    assert first[1].memory_gib is None and first[1].memory_parts_gib is None
    elsewhere = replace(WHOLE[1], gpu_type="A100-80GB", profile="7g.80gb", memory_parts_gib=None)
    first, _ = stage_rows(profile(elsewhere, WHOLE[0]), [elsewhere], CANDIDATE, NAMES)
    assert first[0].memory_parts_gib is not None and first[0].memory_parts_gib.context == 0.5
    bare = replace(WHOLE[1], memory_gib=8.0, memory_parts_gib=None)
    first, second = stage_rows(profile(bare), [bare], CANDIDATE, NAMES)
    assert first[0].memory_gib == pytest.approx(1 + 4.0) and second[0].memory_gib == pytest.approx(3 + 2.0)


def test_a_candidate_that_tells_no_weights_keeps_its_peak_and_grows_from_there():
    silent = replace(CANDIDATE, weight_bytes=())
    first, second = stage_rows(profile(*WHOLE), WHOLE, silent, NAMES)
    assert [row.memory_gib for row in first] == pytest.approx([5.5, 5.5, 5.5 + 12, 5.5 + 124])
    assert [row.memory_gib for row in second] == pytest.approx([5.5, 5.5, 5.5 + 6, 5.5 + 62])
    bare = replace(WHOLE[2], memory_parts_gib=None)  # 20.5 GiB at batch 8
    first, second = stage_rows(profile(bare), [bare], silent, NAMES)
    assert first[0].memory_gib == pytest.approx(5 + 16.5) and second[0].memory_gib == pytest.approx(5 + 8.25)


def test_a_stage_without_time_is_fast_and_never_infinite():
    idle = replace(CANDIDATE, stages=(("a", "b", "c"), ("x",)))
    busy, free = stage_rows(profile(*WHOLE), WHOLE, idle, NAMES)
    assert [row.latency_ms for row in busy] == pytest.approx([row.latency_ms for row in WHOLE])
    assert all(row.throughput_rps == pytest.approx(100.0 / MIN_SHARE) for row in free)
    assert all(row.latency_ms > 0 for row in free)


def variants(of: Profile, *candidates: PartitionCandidate) -> tuple[Variant, ...]:
    outcomes = [PartitionOutcome("optimal", (one,), 1.0, 0.0, architecture_hash="h") for one in candidates]
    return build_request([of], parse_fleet("1xA30-24GB"), candidates=outcomes).models[0].variants


def test_candidates_of_a_profiled_source_under_another_hash_say_to_measure_again():
    measured = profile(*WHOLE)
    cut = PartitionOutcome("optimal", (CANDIDATE,), 1.0, 0.0, source=measured.source, architecture_hash="new")
    with pytest.raises(InputFault, match="are of another architecture or version than its profile"):
        build_request([measured], parse_fleet("1xA30-24GB"), candidates=[cut])
    with pytest.raises(InputFault, match="Pass that model's profile too"):
        build_request([measured], parse_fleet("1xA30-24GB"), candidates=[replace(cut, source="other")])


@pytest.mark.parametrize("peaks", [(1,), (1, 2, 3)])
def test_a_candidate_has_a_peak_for_each_stage(peaks):
    words = rf"cut 1, peak_memory_bytes: has {len(peaks)} figures for 2 stages"
    with pytest.raises(InputFault, match=words):
        variants(profile(*WHOLE), replace(CANDIDATE, peak_memory_bytes=peaks))


def test_a_row_of_the_stage_itself_stands_before_what_is_estimated():
    own = replace(
        WHOLE[1], stage=NAMES[1], throughput_rps=7.0, latency_ms=9.0, memory_gib=2.0, low_rps=6.0,
        high_rps=8.0,
    )  # fmt: skip
    beyond = replace(own, batch_size=128)  # the whole model has no row there
    (_, cut) = variants(profile(*WHOLE, own, beyond), CANDIDATE)
    first, second = ({point.batch_size: point for point in stage.points} for stage in cut.stages)
    assert set(first) == set(BATCHES) and set(second) == {*BATCHES, 128}
    assert (second[2].throughput_rps, second[2].memory_gib, second[2].basis) == (7.0, 2.0, "measured")
    assert (second[2].low_rps, second[2].high_rps) == (6.0, 8.0)
    assert second[8].basis == "estimated" and second[8].memory_gib == pytest.approx(3 + 8 + 0.5)
    assert cut.cut_bytes == (8.0,)


def test_batches_that_parts_cannot_run_are_points_of_the_whole_model_alone():
    cuts = PartitionOutcome("optimal", (CANDIDATE,), 1.0, 0.0, architecture_hash="h", largest_batch=7)
    request = build_request([profile(*WHOLE)], parse_fleet("1xA30-24GB"), candidates=[cuts])
    batches = [
        {point.batch_size for stage in variant.stages for point in stage.points}
        for variant in request.models[0].variants
    ]
    assert batches == [{1, 2, 8, 64}, {1, 2}]


def test_candidates_of_equal_stages_make_one_variant():
    other = replace(CANDIDATE, stages=(("x", "a"), ("b", "c")))
    single = replace(CANDIDATE, stages=(("x", "a", "b", "c"),), cut_bytes=())
    found = variants(
        profile(*WHOLE), single, CANDIDATE, replace(CANDIDATE, max_load_ms=2.0), other, CANDIDATE
    )
    assert [variant.name for variant in found] == ["whole", "cut1", "cut2"]
    assert [stage.name for stage in found[2].stages] == ["cut2.1of2", "cut2.2of2"]


def test_points_have_the_intervals_of_their_rows_scaled_for_stages():
    bare = replace(WHOLE[3], low_rps=None, high_rps=None)
    whole_, cut = variants(profile(*WHOLE[:3], bare), CANDIDATE)
    assert [(p.low_rps, p.throughput_rps, p.high_rps) for p in whole_.stages[0].points] == [
        *[(90.0, 100.0, 110.0)] * 3,
        (None, 100.0, None),
    ]
    first = {point.batch_size: point for point in cut.stages[0].points}
    assert (first[1].low_rps, first[1].throughput_rps, first[1].high_rps) == (180.0, 200.0, 220.0)
    assert first[64].low_rps is None and first[64].high_rps is None


@pytest.mark.parametrize(("low", "high"), [(100.5, None), (None, 99.0), (101.0, 110.0), (120.0, 90.0)])
def test_a_row_outside_its_interval_is_refused_where_it_would_be_a_point(low, high):
    wrong = replace(WHOLE[0], low_rps=low, high_rps=high)
    with pytest.raises(
        InputFault, match=r"sample:bert, whole on A30-24GB 4g.24gb, batch 1.* is outside its interval"
    ):
        variants(profile(wrong, *WHOLE[1:]))
    elsewhere = replace(wrong, gpu_type="A100-80GB", profile="3g.40gb")
    assert len(variants(profile(elsewhere, *WHOLE))[0].stages[0].points) == len(BATCHES)


def test_a_candidate_that_knows_what_grows_with_the_batch_says_so_in_its_variant():
    grown = replace(CANDIDATE, cut_bytes_fixed=(2.0,), cut_bytes_per_request=(3.0,))
    (_, cut) = variants(profile(*WHOLE), grown)
    assert (cut.cut_bytes, cut.cut_bytes_per_request) == ((2.0,), (3.0,))
    constant = replace(CANDIDATE, cut_bytes_fixed=(8.0,), cut_bytes_per_request=(0.0,))
    (_, cut) = variants(profile(*WHOLE), constant)
    assert (cut.cut_bytes, cut.cut_bytes_per_request) == ((8.0,), ())
    (_, old) = variants(profile(*WHOLE), CANDIDATE)
    assert (old.cut_bytes, old.cut_bytes_per_request) == ((8.0,), ())


def test_on_a_host_each_process_of_an_instance_holds_what_one_was_measured_to_hold():
    one = ProfileRow("whole", "CPU", "1c", 4, 1, 10.0, 400.0, 9.0, 11.0, 0.2, "measured", "cpu:1c")
    gpu = replace(one, gpu_type="A30-24GB", profile="1g.6gb", processes=2)
    unknown = replace(one, processes=2, batch_size=1, memory_gib=None)
    profile = Profile("sample:ocr", "hash", rows=(one, replace(one, processes=3), gpu, unknown))
    request = build_request([profile], parse_fleet("1xCPU-2c,1xA30-24GB"))
    points = request.models[0].variants[0].stages[0].points
    told = {(point.gpu_type, point.batch_size, point.processes): point.memory_gib for point in points}
    assert told[("CPU", 4, 1)] == 0.2 and told[("CPU", 4, 3)] == pytest.approx(0.6)
    assert told[("A30-24GB", 4, 2)] == 0.2 and told[("CPU", 1, 2)] is None
