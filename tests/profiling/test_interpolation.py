"""Slices that were not measured, from those that were; checked against the slices the library has measured."""

from dataclasses import replace

import pytest

from torchsplit_core.curves import advice
from torchsplit_core.hardware import gpu_type
from torchsplit_core.profiling.interpolation import interpolate_slices, slice_samples
from torchsplit_core.profiling.library import LIBRARY_GPU, library_profile
from torchsplit_core.profiling.slice_sizes import slice_advice
from torchsplit_core.values import Profile, ProfileFailure, ProfileRow

GPU = gpu_type(LIBRARY_GPU)
REAL = library_profile("resnet50")
ROWS = [row for row in REAL.rows if row.processes == 1]


def with_slices(*measured: str) -> Profile:
    """Those slices measured, the others estimated far off, as a poor roofline would."""
    poor = [
        replace(row, basis="estimated", throughput_rps=1e6, low_rps=1.0, high_rps=1e7, memory_gib=3.0)
        for row in ROWS
        if row.profile not in measured
    ]
    return replace(REAL, rows=(*[row for row in ROWS if row.profile in measured], *poor))


def test_other_slices_come_from_the_curves_with_intervals_that_hold():
    filled = interpolate_slices(with_slices("1g.10gb", "7g.80gb"))
    real = {(row.profile, row.batch_size): row for row in ROWS}
    estimated = [row for row in filled.rows if row.basis == "estimated"]
    assert {row.profile for row in estimated} == {"2g.20gb", "3g.40gb", "4g.40gb"}
    errors, held = [], 0
    for row in estimated:
        truth = real[row.profile, row.batch_size].throughput_rps
        errors.append(abs(row.throughput_rps / truth - 1))
        assert row.low_rps is not None and row.high_rps is not None
        assert 0 < row.low_rps <= row.throughput_rps <= row.high_rps
        held += row.low_rps <= truth <= row.high_rps
        assert row.memory_gib == 3.0  # curves tell nothing of memory
    assert sorted(errors)[len(errors) // 2] < 0.05 and held >= 0.7 * len(estimated)
    points = sum(row.profile in ("1g.10gb", "7g.80gb") for row in ROWS)
    assert filled.environment["curves"] == {LIBRARY_GPU: {"points": points, "slices": 2}}


def test_measured_rows_other_gpus_and_slices_without_a_size_stay_as_they_are():
    before = with_slices("1g.10gb", "7g.80gb")
    other = replace(before.rows[-1], gpu_type="A30-24GB", profile="1g.6gb")
    filled = interpolate_slices(replace(before, rows=(*before.rows, other)))
    assert [row for row in filled.rows if row.basis == "measured"] == [
        row for row in before.rows if row.basis == "measured"
    ]
    assert filled.rows[-1] == other
    strange = replace(before.rows[-1], profile="9g.99gb", basis="estimated")
    assert interpolate_slices(replace(before, rows=(*before.rows, strange))).rows[-1] == strange


def test_without_a_measured_slice_nothing_changes():
    before = with_slices()
    assert interpolate_slices(before) == before and slice_samples(before, GPU) == ()


def test_what_a_smaller_slice_could_not_hold_is_not_promised():
    before = with_slices("1g.10gb", "7g.80gb")
    full = ProfileFailure("whole", LIBRARY_GPU, "2g.20gb", 32, 1, "out_of_memory", "Out of memory.")
    filled = interpolate_slices(replace(before, failures=(full,)))
    kept = {row.batch_size for row in filled.rows if row.profile == "2g.20gb"}
    assert kept == {
        batch for batch in {row.batch_size for row in ROWS if row.profile == "2g.20gb"} if batch < 32
    }
    assert any(row.profile == "4g.40gb" and row.batch_size >= 32 for row in filled.rows)


def test_a_whole_gpu_and_a_number_of_sms_count_as_slices():
    whole = ProfileRow("whole", LIBRARY_GPU, None, 8, 1, 900.0, 9.0, None, None, None, "measured")
    strange = replace(whole, profile="sm:20")
    emulated = replace(whole, profile="3g.40gb", basis="emulated")
    samples = slice_samples(replace(REAL, rows=(whole, strange, emulated)), GPU)
    assert [(sample.size, sample.memory_share) for sample in samples] == [
        (108.0, 1.0), (20.0, 1.0), (42.0, 1.0),
    ]  # fmt: skip


def test_what_a_slice_has_is_told_apart_from_the_gpu_with_mig_off():
    before = with_slices("1g.10gb", "7g.80gb")
    off = tuple(replace(row, profile=None) if row.profile == "7g.80gb" else row for row in before.rows)
    asked = [
        replace(before.rows[0], profile=place, batch_size=12, basis="estimated")
        for place in ("7g.80gb", None)
    ]
    seven, whole = interpolate_slices(replace(before, rows=(*off, *asked))).rows[-2:]
    assert (seven.profile, whole.profile) == ("7g.80gb", None)
    # Ten SMs fewer: somewhat slower, by less than their share.
    assert 98 / 108 < seven.throughput_rps / whole.throughput_rps < 1


def test_advice_names_the_slice_that_would_help_most():
    samples = slice_samples(with_slices("7g.80gb"), GPU)
    widths = {item.size: item for item in advice(samples, (14.0, 28.0, 42.0, 56.0, 98.0)).uncertainty}
    # The farther from what was measured, the less is known.
    assert widths[14.0].width_now > widths[56.0].width_now > widths[98.0].width_now
    advised = slice_advice(GPU, samples)
    assert advised is not None and advised.widest == "1g.10gb" and advised.slices_measured == 1
    assert advised.width_now == pytest.approx(widths[14.0].width_now ** 0.5)
    assert advised.next_slice != "7g.80gb" and advised.width_after < advised.width_now


@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_points_give_wide_intervals_not_faults(count):
    before = with_slices("7g.80gb")
    few = [row for row in before.rows if row.basis == "measured"][:count]
    filled = interpolate_slices(
        replace(before, rows=(*few, *[r for r in before.rows if r.basis == "estimated"]))
    )
    for row in filled.rows:
        if row.basis == "estimated":
            assert row.low_rps is not None and row.high_rps is not None
            assert 0 < row.low_rps < row.throughput_rps < row.high_rps
