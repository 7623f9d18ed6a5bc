"""Figures of one GPU type for another: what is estimated, how surely, and what is left out."""

from dataclasses import replace

import pytest

from torchsplit_core.profiling.transfer import transfer
from torchsplit_core.values import InputFault, ProfileFailure, ProfileRow

A100, H100, L4 = "A100-80GB", "H100-SXM5-80GB", "L4-24GB"
SLICES = {"1g.10gb": 1.0, "2g.20gb": 2.0, "7g.80gb": 7.0}


def row(profile: str | None, batch: int, rate: float, memory: float | None = 2.0) -> ProfileRow:
    return ProfileRow(
        "whole", A100, profile, batch, 1, rate, 1000 * batch / rate, None, None, memory, "measured"
    )


def measured(memory: float | None = 2.0) -> list[ProfileRow]:
    """A model bound by its slice: 100 requests/s a compute slice at batch 8 and above."""
    return [
        row(name, batch, 100.0 * size * batch / (batch + 2), memory)
        for name, size in SLICES.items()
        for batch in (8, 32)
    ]


def test_every_slice_and_the_whole_gpu_are_estimated_with_an_interval_that_grows_with_the_distance():
    found = transfer(measured(), (H100,)).rows
    at = {(one.profile, one.batch_size): one for one in found}
    assert {one.profile for one in found} == {
        *("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
        None,
    }
    assert all(one.basis == "estimated" and one.gpu_type == H100 and one.memory_gib == 2.0 for one in found)
    assert all((one.low_rps or 0) < one.throughput_rps < (one.high_rps or 0) for one in found)
    # Between the ratios of bandwidth (1.64) and of compute (16 of 132 SMs of 495 TFLOP/s for 14 of 108 of 156: 2.97).
    ratio = at["1g.10gb", 32].throughput_rps / measured()[1].throughput_rps
    assert 1.5 < ratio < 3.2
    widths = [
        (one.high_rps or 0) / (one.low_rps or 1)
        for one in (at["1g.10gb", 32], at["7g.80gb", 32], at[None, 32])
    ]
    assert widths[0] < widths[1] <= widths[2]


def test_the_precision_of_the_rows_says_which_peaks_count():
    (fp16,) = (one for one in transfer(measured(), ("T4-16GB",), "fp16").rows if one.batch_size == 32)
    (fp32,) = (one for one in transfer(measured(), ("T4-16GB",), "fp32").rows if one.batch_size == 32)
    # 65 of 312 TFLOP/s, against FP32's 8.1 where an A100 has 156 in TF32: by products alone it would be 8.1 of 19.5.
    assert fp32.throughput_rps < fp16.throughput_rps
    assert (fp32.high_rps or 0) / (fp32.low_rps or 1) > (fp16.high_rps or 0) / (fp16.low_rps or 1)


def test_slices_too_small_for_the_memory_are_left_out_and_said():
    transferred = transfer(measured(12.0), ("A30-24GB",))
    assert {one.profile for one in transferred.rows} == {"4g.24gb", None}
    assert transferred.too_small == ("A30-24GB 1g.6gb", "A30-24GB 2g.12gb")
    unknown = transfer(measured(None), ("A30-24GB",))
    # It ran on 9.5 GiB: what holds no less holds it; 5.81 GiB nobody tried.
    assert {one.profile for one in unknown.rows} == {"2g.12gb", "4g.24gb", None}


def test_of_what_is_there_nothing_is_estimated_again_and_estimates_are_no_ground_beside_measurements():
    first = transfer(measured(), (L4,)).rows
    assert not transfer([*measured(), *first], (L4,)).rows
    assert transfer([*measured(), *first], (H100,)) == transfer(measured(), (H100,))
    whole = transfer(measured(), (f"{A100}:whole",)).rows
    assert {one.profile for one in whole} == {None} and whole[0].gpu_type == A100
    assert transfer(measured(), (A100,)).notes == (
        f"{A100}: rows of it are there already and stay as they are",
    )


def test_estimated_ground_makes_the_interval_wider():
    sure = transfer(measured(), (L4,)).rows[0]
    vague = [
        replace(one, basis="estimated", low_rps=one.throughput_rps / 2, high_rps=one.throughput_rps * 2)
        for one in measured()
    ]
    unsure = transfer(vague, (L4,)).rows[0]
    assert unsure.throughput_rps == pytest.approx(sure.throughput_rps)
    assert (unsure.low_rps or 0) < (sure.low_rps or 0)


def test_failures_and_rows_of_cores_are_no_ground():
    failure = ProfileFailure("whole", A100, "1g.10gb", 64, 1, "out_of_memory", "")
    cores = replace(measured()[0], gpu_type="CPU", profile="4c")
    assert not transfer([failure, cores], (L4,)).rows
    assert transfer([*measured(), failure, cores], (L4,)) == transfer(measured(), (L4,))


@pytest.mark.parametrize(("name", "told"), [
    ("H100-SXM-80GB", "H100-SXM5-80GB"),
    ("CPU-8c", "a host of cores"),
    ("L20-48GB", "no published TF32 peak"),
    ("B300", "Did you mean B300-270GB"),
    ("RTX-PRO-5000-Blackwell-48GB", r"no published TF32 peak\. Measure the model there\."),
    ("RTX-PRO-4500-Blackwell-32GB", r"no published FP32 peak\. Measure the model there\."),
])  # fmt: skip
def test_a_type_that_cannot_be_estimated_is_refused_with_what_is_missing(name, told):
    with pytest.raises(InputFault, match=told) as caught:
        transfer(measured(), (name,))
    assert caught.value.where == "--to"


def test_slices_whose_memory_is_not_published_are_named_and_the_whole_gpu_is_estimated():
    transferred = transfer(measured(), ("B300-270GB", "GB300-279GB:whole"))
    assert {(one.gpu_type, one.profile) for one in transferred.rows} == {
        ("B300-270GB", None),
        ("GB300-279GB", None),
    }
    names = "1g.34gb, 1g.67gb, 2g.67gb, 3g.135gb, 4g.135gb, 7g.269gb"
    assert transferred.notes == (f"B300-270GB {names}: left out, their memory is not published",)
