"""The data of the catalogue: every row has a source, slices fit into their GPU, and what is not published is named."""

import pytest

from torchsplit_core.hardware import (
    catalogue,
    peak_names,
    peaks,
    sliced_types,
    unsourced_profiles,
    without_mig,
)
from torchsplit_core.hardware.discovery import read_gpu
from torchsplit_core.hardware.nvml import GpuListing
from torchsplit_core.values import SliceProfile

GPUS = list(catalogue().values())
WHOLE_ALONE = (
    "B300-270GB", "GB300-279GB", "H20-96GB", "RTX-PRO-5000-Blackwell-48GB", "RTX-PRO-4500-Blackwell-32GB",
)  # fmt: skip
"""Types of which no listing gives the memory of a slice."""


def test_every_row_has_a_source():
    for gpu in GPUS:
        for profile in gpu.profiles:
            # A source's key that the file has not would stand there as it is: S13.
            assert len(profile.source) > 20, (gpu.name, profile.name)
    assert all(len(peaks(name).source) > 20 for name in peak_names())


def _at_once(profile: SliceProfile) -> int:
    """How many instances stand side by side, starts taken from the left."""
    count, free = 0, 0
    for start in sorted(profile.placement_starts):
        if start >= free:
            count, free = count + 1, start + profile.memory_slices
    return count


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_slices_fit_into_their_gpu(gpu):
    assert gpu.profiles and gpu.whole is not None
    for one in gpu.profiles:
        assert one.name.startswith(f"{one.compute_slices}g.")
        starts = one.placement_starts
        assert starts == tuple(sorted(set(starts)))
        assert all(0 <= start <= gpu.memory_slices - one.memory_slices for start in starts)
        assert not starts or one.max_instances <= _at_once(one)
        assert one.max_instances * one.compute_slices <= gpu.compute_slices
        assert one.max_instances * one.memory_slices <= gpu.memory_slices
        if one.sm_count is not None and gpu.sm_mig_off is not None:
            assert one.max_instances * one.sm_count <= (gpu.sm_mig_on or gpu.sm_mig_off)
        if one.memory_gib is not None and gpu.whole.memory_gib is not None:
            assert one.max_instances * one.memory_gib <= gpu.whole.memory_gib
    largest = max(gpu.profiles, key=lambda one: one.compute_slices)
    assert (largest.compute_slices, largest.memory_slices) == (gpu.compute_slices, gpu.memory_slices)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_what_is_not_published_is_named(gpu):
    peak = peaks(gpu.name)
    figures = (peak.fp32_tflops, peak.tf32_tflops, peak.bf16_tflops, peak.fp16_tflops, peak.memory_gb_per_s)
    silent = bool(unsourced_profiles(gpu)) or None in figures
    silent |= any(not profile.placement_starts or profile.profile_id < 0 for profile in gpu.profiles)
    assert silent == bool(gpu.note)
    # Neither is a row of a GPU with slots but without starts one that layouts are made of.
    assert all(profile.placement_starts or profile.memory_gib is None for profile in gpu.profiles)


def test_types_that_are_planned_whole_alone():
    assert set(catalogue()) - set(sliced_types()) == set(WHOLE_ALONE)


def test_each_card_is_one_type():
    ids = [pci for gpu in GPUS for pci in gpu.pci_device_ids]
    names = [name for gpu in GPUS for name in gpu.product_names]
    assert len(set(ids)) == len(ids) and len(set(names)) == len(names)


class OneGpu:
    """A driver with one GPU."""

    def __init__(self, name: str, pci: str | None) -> None:
        self.listing = GpuListing(0, name, "GPU-0", None, pci, None, None)

    def gpu(self, index: int) -> GpuListing:
        assert index == 0
        return self.listing


@pytest.mark.parametrize(("name", "pci", "found"), [
    ("NVIDIA B300 SXM6 AC", "0x318210DE", "B300-270GB"),
    ("NVIDIA GB300", "0x31C210DE", "GB300-279GB"),
    ("NVIDIA H20", "0x232910de", "H20-96GB"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", None, "RTX-PRO-6000-Blackwell-Workstation-96GB"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "0x2BB410DE",
     "RTX-PRO-6000-Blackwell-Max-Q-96GB"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX-PRO-6000-Blackwell-96GB"),
    ("NVIDIA RTX PRO 4500 Blackwell", "0x2C3110DE", "RTX-PRO-4500-Blackwell-32GB"),
    # One PCI id, two sizes of memory: the name tells which.
    ("NVIDIA RTX PRO 5000 Blackwell", "0x2BB310DE", "RTX-PRO-5000-Blackwell-48GB"),
    ("NVIDIA RTX PRO 5000 72GB Blackwell", "0x2BB310DE", None),
    ("NVIDIA GB300", None, None),
])  # fmt: skip
def test_a_card_is_known_by_its_id_or_its_name(name, pci, found):
    assert read_gpu(OneGpu(name, pci), 0).gpu_type == found  # type: ignore[arg-type]


def test_workstation_cards_have_the_slices_of_the_server_edition():
    def known(name):
        return [
            (one.name, one.profile_id, one.sm_count, one.memory_gib, one.placement_starts, one.max_instances)
            for one in catalogue()[name].profiles
        ]

    server = known("RTX-PRO-6000-Blackwell-96GB")
    assert len(server) == 11
    assert (
        known("RTX-PRO-6000-Blackwell-Workstation-96GB")
        == known("RTX-PRO-6000-Blackwell-Max-Q-96GB")
        == server
    )


def test_tf32_came_with_bfloat16_and_silent_sources_say_nothing_of_it():
    before = {name for name in (*catalogue(), *without_mig()) if peaks(name).before_tf32}
    assert before == {"V100-SXM2-32GB", "T4-16GB"}
