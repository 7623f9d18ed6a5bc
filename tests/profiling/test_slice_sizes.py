"""One size of a slice for estimates, curves and advice: what MIG reaches, what it does not, and what is no slice."""

import csv
from pathlib import Path

import pytest

import torchsplit_core.hardware as hardware
from torchsplit_core.hardware import catalogue, gpu_type
from torchsplit_core.profiling.slice_sizes import SliceSize, slice_advice, slice_sample, slice_size
from torchsplit_core.values import InputFault, ProfileFailure, ProfileRow

A100 = "A100-80GB"
PEAKS = Path(hardware.__file__).parent / "data" / "gpu_peaks.csv"


def row(profile: str | None, batch: int = 8, rate: float = 900.0, basis: str = "measured") -> ProfileRow:
    latency = 1000 * batch / rate
    return ProfileRow("whole", A100, profile, batch, 1, rate, latency, None, None, None, basis)  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpu", "profile", "size"), [
    (A100, None, SliceSize(108.0, 1.0)),
    (A100, "7g.80gb", SliceSize(98.0, 1.0)),
    ("A100-40GB", None, SliceSize(108.0, 1.0)),
    ("A100-40GB", "7g.40gb", SliceSize(98.0, 1.0)),
    (A100, "3g.40gb", SliceSize(42.0, 0.5)),
    (A100, "1g.20gb", SliceSize(14.0, 0.25)),
    (A100, "sm:20", SliceSize(20.0, 1.0)),
    ("A30-24GB", None, SliceSize(56.0, 1.0)),
    ("A30-24GB", "4g.24gb", SliceSize(56.0, 1.0)),
    ("H100-SXM5-80GB", "7g.80gb", SliceSize(132.0, 1.0)),
    ("H200-141GB", None, SliceSize(132.0, 1.0)),
    ("B200-180GB", "4g.90gb", SliceSize(72.0, 0.5)),
    ("GH200-144GB-HBM3e", "7g.144gb", None),  # its listing was not seen
    ("GH200-144GB-HBM3e", None, SliceSize(132.0, 1.0)),
    (A100, "9g.99gb", None),
    (A100, "sm:", None),
    (A100, "sm:0", None),
    ("CPU", None, SliceSize(1.0, None)),
    ("Another GPU", None, SliceSize(1.0, None)),
    ("Another GPU", "1g.5gb", None),
])  # fmt: skip
def test_the_size_of_a_slice(gpu, profile, size):
    assert slice_size(gpu, profile) == size


def test_mig_reaches_what_its_largest_slice_has_and_never_more_than_the_gpu():
    with PEAKS.open(newline="") as file:
        listed = {line["gpu"]: int(line["sm_count"]) for line in csv.DictReader(file) if line["sm_count"]}
    lost = {}
    for name, gpu in catalogue().items():
        whole = max((profile for profile in gpu.profiles), key=lambda one: one.compute_slices)
        assert gpu.sm_mig_on == whole.sm_count and gpu.sm_mig_off == listed[name]
        if gpu.sm_mig_on is not None and gpu.sm_mig_off is not None:
            lost[name] = gpu.sm_mig_off - gpu.sm_mig_on
    # Of the parts with a listing only the A100 keeps some back.
    assert {name: count for name, count in lost.items() if count} == {"A100-40GB": 10, "A100-80GB": 10}


def test_emulated_sms_keep_all_bandwidth_and_failures_are_rows_of_zero():
    measured, emulated = (
        slice_sample(row("3g.40gb", basis=basis), "m") for basis in ("measured", "emulated")
    )
    assert measured is not None and (measured.size, measured.memory_share) == (42.0, 0.5)
    assert emulated is not None and (emulated.size, emulated.memory_share) == (42.0, 1.0)
    full = slice_sample(ProfileFailure("whole", A100, "1g.10gb", 64, 2, "out_of_memory", "Full."), "m")
    assert full is not None and (full.size, full.batch_size, full.processes) == (14.0, 64, 2)
    assert (full.throughput_rps, full.latency_ms) == (0.0, None)
    assert slice_sample(row("9g.99gb"), "m") is None


def test_advice_counts_slices_of_equal_sms_once_and_mig_off_as_a_size_of_its_own():
    samples = [
        sample
        for place, factor in ((None, 1.0), ("7g.80gb", 0.92))
        for batch in (1, 4, 16)
        if (sample := slice_sample(row(place, batch, factor * 300.0 * batch**0.5), "m")) is not None
    ]
    found = slice_advice(gpu_type(A100), samples)
    assert found is not None and found.slices_measured == 2
    assert found.widest == "1g.10gb" and found.next_slice != "7g.80gb"  # the farthest from what was measured
    assert found.width_now > found.width_after > 1 and found.batch_size in (1, 4, 16)
    with pytest.raises(InputFault, match="one model"):
        slice_advice(gpu_type(A100), ())
