"""The catalogue and the legal layouts against counts known from NVIDIA's own tables."""

from collections import Counter

import pytest

from torchsplit_core.hardware import (
    catalogue,
    creation_order,
    gpu_type,
    layout_multisets,
    legal_layouts,
    maximal_multisets,
    peaks,
    place_layout,
    plain_profiles,
    unsourced_profiles,
)
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import InputFault, PlacedProfile

SEVEN_SLICES = ["A100-40GB", "A100-80GB", "H100-SXM5-80GB", "H200-141GB"]


def test_catalogue_names_and_faults():
    assert len(catalogue()) == 19
    assert gpu_type("A100-80GB").profile("3g.40gb").memory_gib == 39.25
    with pytest.raises(InputFault, match="A100-80GB"):
        gpu_type("A100-80")
    with pytest.raises(KeyError):
        gpu_type("A30-24GB").profile("7g.80gb")


def test_plain_profiles_leave_out_variants_and_unsourced_memory():
    assert [p.name for p in plain_profiles(gpu_type("A30-24GB"))] == ["1g.6gb", "2g.12gb", "4g.24gb"]
    part = gpu_type("GH200-144GB-HBM3e")
    assert unsourced_profiles(part) == ("3g.72gb", "4g.72gb", "7g.144gb")
    assert {p.name for p in plain_profiles(part)} == {"1g.18gb", "1g.36gb", "2g.36gb"}


@pytest.mark.parametrize("name", SEVEN_SLICES)
def test_seven_slice_counts(name):
    gpu = gpu_type(name)
    assert len(legal_layouts(gpu, maximal=True, double_memory=False)) == 19
    assert len(layout_multisets(gpu)) == 78
    assert len(maximal_multisets(gpu)) == 28
    layouts = legal_layouts(gpu)
    assert len(set(layouts)) == len(layouts) == 723
    assert sum(not layout.placed for layout in layouts) == 1


def test_every_layout_passes_the_independent_check():
    for name, gpu in catalogue().items():
        for layout in legal_layouts(gpu):
            assert layout_fault(gpu, layout.placed) is None, (name, layout)


def test_known_layouts():
    gpu = gpu_type("A100-80GB")
    both = place_layout(gpu, ["3g.40gb", "4g.40gb"])
    assert both is not None
    assert [(item.profile, item.start) for item in both.placed] == [("4g.40gb", 0), ("3g.40gb", 4)]
    assert place_layout(gpu, ["3g.40gb", "3g.40gb"]) is not None
    assert place_layout(gpu, ["3g.40gb", "3g.40gb", "1g.10gb"]) is None
    assert place_layout(gpu, ["4g.40gb", "4g.40gb"]) is None
    assert place_layout(gpu, ["1g.10gb"] * 7) is not None
    assert place_layout(gpu, ["1g.10gb"] * 8) is None
    assert place_layout(gpu, []) is not None
    with pytest.raises(InputFault, match=r"unknown profile '1g\.6gb'\. Did you mean 1g"):
        place_layout(gpu, ["1g.6gb"])


def test_placing_agrees_with_enumeration():
    gpu = gpu_type("A100-80GB")
    legal = set(layout_multisets(gpu))
    names = [p.name for p in plain_profiles(gpu)]
    tried = 0
    for first in names:
        for second in names:
            for third in names:
                wanted = tuple(sorted((first, second, third)))
                assert (place_layout(gpu, wanted) is not None) == (wanted in legal)
                tried += 1
    assert tried == 6**3


def test_layout_fault_names_the_trouble():
    gpu = gpu_type("A100-80GB")
    assert "overlaps" in str(layout_fault(gpu, [PlacedProfile("4g.40gb", 0), PlacedProfile("1g.10gb", 3)]))
    assert "cannot start" in str(layout_fault(gpu, [PlacedProfile("4g.40gb", 4)]))
    assert "no profile" in str(layout_fault(gpu, [PlacedProfile("1g.6gb", 0)]))
    # 3g + 2g + 1g.20gb fill the slots with 6 compute slices; +me may stand once only.
    twice = [PlacedProfile("1g.10gb+me", 0), PlacedProfile("1g.10gb+me", 1)]
    assert "more than 1" in str(layout_fault(gpu, twice))


def test_creation_order_is_large_first():
    gpu = gpu_type("A100-80GB")
    layout = place_layout(gpu, ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"])
    assert layout is not None
    order = creation_order(gpu, layout)
    sizes = [gpu.profile(item.profile).memory_slices for item in order]
    assert sizes == sorted(sizes, reverse=True)
    assert Counter(order) == Counter(layout.placed)


def test_peaks():
    assert peaks("A100-80GB").fp16_tflops == 312
    assert peaks("A100-80GB").memory_gb_per_s == 2039
    assert peaks("V100-SXM2-32GB").bf16_tflops is None
    with pytest.raises(InputFault, match="H100"):
        peaks("TPU")
