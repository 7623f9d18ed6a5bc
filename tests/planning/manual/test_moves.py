"""Moves of a plan by hand: what is offered is exactly what would be legal, and a change stays where it was made."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.planning.requests import whole_model
from torchsplit_core.hardware import gpu_type, legal_layouts, plain_profiles
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.planning.manual.evaluate import ManualGpu, ManualSlice, ManualTenant
from torchsplit_core.planning.manual.moves import models_with_points, placements_at, replace_slice, slice_at
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import FleetEntry, PlacedProfile, PlanRequest, Point

A100 = "A100-80GB"


def hand(*slices: tuple[str, int], name: str = "gpu0") -> ManualGpu:
    return ManualGpu(name, tuple(ManualSlice(*item) for item in slices))


@pytest.mark.parametrize("kind", ["A100-80GB", "A30-24GB", "H100-SXM5-80GB", "RTX-PRO-6000-Blackwell-96GB"])
def test_what_is_offered_is_what_the_gpu_allows(kind):
    """Against every placement of every profile, for slices and gaps of random layouts with some slices gone."""
    gpu, draw = gpu_type(kind), random.Random(7)
    layouts = legal_layouts(gpu)
    sizes = {profile.name: profile.memory_slices for profile in gpu.profiles}
    for layout in draw.sample(layouts, min(40, len(layouts))):
        placed = [item for item in layout.placed if draw.random() < 0.7]
        one = hand(*((item.profile, item.start) for item in placed))
        covered = {
            slot: item for item in placed for slot in range(item.start, item.start + sizes[item.profile])
        }
        for slot in range(gpu.memory_slices):
            if slot in covered and covered[slot].start != slot:
                continue
            others = [item for item in placed if item.start != slot]
            mine = {s for s in covered if covered[s].start == slot and slot in covered}
            if not mine:  # a gap: every free slot that free slots join to this one
                mine, edge = {slot}, [slot]
                while edge:
                    at = edge.pop()
                    new = {
                        s for s in (at - 1, at + 1) if 0 <= s < gpu.memory_slices and s not in covered
                    } - mine
                    mine |= new
                    edge += new
            wanted = {
                (profile.name, start)
                for profile in plain_profiles(gpu)
                for start in range(gpu.memory_slices)
                if layout_fault(gpu, (*others, PlacedProfile(profile.name, start))) is None
                and mine & set(range(start, start + profile.memory_slices))
            }
            placements = placements_at(FleetGpu("gpu0", kind, None, 1.0), one, slot)
            assert len(placements) == len(set(placements)) and set(placements) == wanted
            assert [sizes[name] for name, _ in placements] == sorted(
                (sizes[name] for name, _ in placements), reverse=True
            )


def test_only_parts_of_an_offered_layout_are_offered():
    given = FleetGpu("gpu0", A100, (("3g.40gb", "4g.40gb"), ("1g.10gb", "2g.20gb", "4g.40gb")), 1.0)
    gpu = hand(("4g.40gb", 0))
    placements = placements_at(given, gpu, 4)
    assert {name for name, _ in placements} == {"3g.40gb", "2g.20gb", "1g.10gb"}
    assert {name for name, _ in placements_at(given, hand(("4g.40gb", 0), ("2g.20gb", 4)), 6)} == {"1g.10gb"}
    for name, _ in placements:
        assert any(Counter([name, "4g.40gb"]) <= Counter(layout) for layout in given.layouts or ())


def test_a_slice_of_no_known_profile_does_not_stop_the_rest():
    placements = placements_at(FleetGpu("gpu0", A100, None, 1.0), hand(("9g.90gb", 0)), 0)
    assert ("7g.80gb", 0) in placements
    assert placements_at(FleetGpu("gpu0", A100, None, 1.0), hand(("9g.90gb", 0)), 4) == ()


def test_a_change_is_made_on_the_named_gpus_alone():
    gpus = (hand(("4g.40gb", 0), ("3g.40gb", 4)), hand(("7g.80gb", 0), name="gpu1"))
    new = ManualSlice("2g.20gb", 4, (ManualTenant("bert"),))
    after = replace_slice(gpus, ["gpu0"], 4, new)
    assert after == (ManualGpu("gpu0", (ManualSlice("4g.40gb", 0), new)), gpus[1])
    assert replace_slice(after, ["gpu0"], 0, None)[0] == ManualGpu("gpu0", (new,))
    assert slice_at(after[0], 4) == new and slice_at(after[0], 5) is None
    # A GPU that had nothing on it yet joins.
    both = replace_slice(gpus, ["gpu1", "gpu2"], 0, ManualSlice("7g.80gb", 0))
    assert both == (*gpus, hand(("7g.80gb", 0), name="gpu2"))


def test_a_model_runs_where_one_of_its_stages_has_a_point():
    def model(name, *profiles):
        points = tuple(Point(A100, profile, 8, 10.0, 40.0) for profile in profiles)
        return whole_model(name, points)

    request = PlanRequest((FleetEntry(A100),), (model("bert", "7g.80gb"), model("ocr", "1g.10gb", "7g.80gb")))
    assert models_with_points(request, A100, "7g.80gb") == ("bert", "ocr")
    assert models_with_points(request, A100, "1g.10gb") == ("ocr",)
    assert models_with_points(request, "A30-24GB", "1g.6gb") == ()
    # A variant that is not allowed is no way to run.
    barred = replace(request.models[1], variants=(replace(request.models[1].variants[0], allowed=False),))
    assert models_with_points(replace(request, models=(request.models[0], barred)), A100, "7g.80gb") == (
        "bert",
    )
