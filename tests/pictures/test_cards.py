"""A card as what it is: SVG whose rectangles must be where the plan's slices are, and whose words fit."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.support.app.fleets import (
    A100,
    MIXED,
    cut,
    demanding,
    drawn,
    gpu,
    of_class,
    plan,
    span,
    tenant,
    title,
)
from torchsplit_core.hardware import catalogue, legal_layouts
from torchsplit_core.pictures.slice_values import gpu_groups, slice_table, stage_loads
from torchsplit_core.pictures.slices.drawing import GAP, WIDTH


def test_slices_stand_at_their_true_slots_and_to_scale():
    for card, planned in zip(drawn(MIXED), MIXED.gpus, strict=True):
        kind = catalogue()[planned.type]
        slot = WIDTH / kind.memory_slices
        expected = sorted(
            (item.start * slot + GAP / 2, kind.profile(item.profile).memory_slices * slot - GAP)
            for item in planned.slices
        )
        boxes = sorted(span(element) for element in of_class(card, "slice", "free"))
        assert np.allclose(boxes, expected, atol=1e-3)


@pytest.mark.parametrize("kind", ["A30-24GB", A100])
def test_for_every_layout_slices_and_gaps_fill_the_gpu_without_overlap(kind):
    total = catalogue()[kind].memory_slices
    for layout in legal_layouts(catalogue()[kind])[::7]:
        slices = [cut(item.profile, item.start, tenant("m")) for item in layout.placed]
        (card,) = drawn(plan(gpu("g", kind, *slices)))
        boxes = sorted(span(element) for element in of_class(card, "slice", "free", "gap"))
        assert all(x + width < after for (x, width), (after, _) in pairwise(boxes))
        assert sum(width + GAP for _, width in boxes) == pytest.approx(WIDTH, abs=1e-3)
        (memory,) = of_class(card, "memory")
        (compute,) = of_class(card, "compute")
        assert len(list(memory.iter("rect"))) == total
        assert len(list(compute.iter("rect"))) == catalogue()[kind].compute_slices
        taken = sum(catalogue()[kind].profile(item.profile).compute_slices for item in layout.placed)
        assert sum(rect.get("fill") != "none" for rect in compute.iter("rect")) == taken


def test_the_gauge_is_as_wide_as_the_load_and_lies_below_every_word() -> None:
    (first, second) = drawn(MIXED, request=demanding({"clip": 370.0, "bert": 150.0, "ocr": 900.0}))

    def shares(card):
        rooms = [float(one.get("width", "nan")) for one in of_class(card, "headroom", tag="rect")]
        loads = [float(one.get("width", "nan")) for one in of_class(card, "load", tag="rect")]
        return [load / room for load, room in zip(loads, rooms, strict=True)]

    assert shares(first) == pytest.approx([0.25, 0.75], abs=1e-3)
    assert shares(second) == pytest.approx([0.75, 1.0], abs=1e-3)
    for card in (first, second):
        for box in of_class(card, "tenant"):
            (gauge,) = of_class(box, "load", tag="rect")
            lowest = max(float(text.get("y", "nan")) for text in box.iter("text"))
            # A fifth of a letter reaches below its line.
            assert lowest + 0.2 * 12 <= float(gauge.get("y", "nan"))
    titles = [title(element) for element in of_class(second, "tenant")]
    assert "900" in titles[1]


def test_an_unknown_load_is_not_shown_as_zero():
    outcome = replace(MIXED, models=())
    assert stage_loads(outcome) == {}
    for card in drawn(outcome):
        assert not list(of_class(card, "load", tag="rect"))
        assert all("demand n/a" in title(element) for element in of_class(card, "tenant"))
    assert all(row["load %"] is None for row in slice_table(outcome))


def test_equal_gpus_are_one_card_and_unused_ones_come_last():
    same = [gpu(f"n{i}/gpu0", A100, cut("7g.80gb", 0, tenant("m"))) for i in range(12)]
    outcome = plan(gpu("idle", A100), *same, gpu("other", A100, cut("7g.80gb", 0, tenant("n"))))
    assert [len(group.ids) for group in gpu_groups(outcome)] == [12, 1, 1]
    first, _, last = drawn(outcome)
    assert "× 12" in "".join(first.itertext())
    assert "n11/gpu0" in "".join(first.itertext())
    assert "12 GPUs alike" in first.get("aria-label", "")
    assert "not used" in "".join(last.itertext())


def test_tenants_of_a_slice_are_as_wide_as_their_shares_and_the_rest_is_free():
    shared = cut("4g.40gb", 0, tenant("a", share=0.25), tenant("b", share=0.5))
    (card,) = drawn(plan(gpu("g", A100, shared)))
    (box,) = of_class(card, "slice")
    _, whole = span(box)
    widths = [span(element)[1] for element in of_class(card, "tenant")]
    assert widths == pytest.approx([0.25 * whole, 0.5 * whole], abs=0.01)
    (rest,) = of_class(box, "free")
    assert span(rest)[0] == pytest.approx(0.75 * whole, abs=0.01)
    assert "25" in title(rest)


def test_text_fits_its_slice():
    names = ["densenet121", "mobilenetv2", "a-very-long-model-name-2024", "W" * 40, "m"]
    slices = [cut("1g.10gb", i, tenant(name, 123_456.0)) for i, name in enumerate(names)]
    wide = cut("3g.40gb", 0, tenant("W" * 40, stage="s" * 60, variant="v" * 60))
    for card in drawn(plan(gpu("a", A100, *slices), gpu("b", A100, wide))):
        for box in of_class(card, "tenant"):
            for text in box.iter("text"):
                # Half a font size a letter is less than any usual face needs.
                needed = len("".join(text.itertext())) * float(text.get("font-size", "nan")) * 0.5
                assert float(text.get("x", "nan")) + needed <= span(box)[1], "".join(text.itertext())


def test_gpus_whose_shares_differ_by_rounding_alone_are_one_card():
    almost = 0.9999999999999998
    whole, rounded = tenant("m", 100.0), tenant("m", 100.0 * almost, share=almost)
    alike = plan(gpu("a", A100, cut("7g.80gb", 0, whole)), gpu("b", A100, cut("7g.80gb", 0, rounded)))
    assert len(drawn(alike)) == 1
    assert [row["share"] for row in slice_table(alike)] == [1.0, 1.0]
    other = tenant("m", 99.9, share=0.999)
    assert len(drawn(plan(alike.gpus[0], gpu("b", A100, cut("7g.80gb", 0, other))))) == 2


def test_cards_speak_and_titles_carry_the_exact_figures():
    first, _ = drawn(MIXED)
    spoken = first.get("aria-label", "")
    assert spoken.startswith("gpu0, A100-80GB: 4g.40gb clip whole 1")
    assert spoken.endswith("1g.10gb free")
    exact = title(next(of_class(first, "tenant")))
    for figure in ("4g.40gb at slot 0", "batch 8", "processes 1", "3.2", "1\u202f480"):
        assert figure in exact
    assert "84 of 98 SMs planned" in "".join(first.itertext())


def test_unsourced_sms_are_not_counted_as_zero():
    (card,) = drawn(plan(gpu("g", "GB200-186GB", cut("7g.189gb", 0, tenant("m")))))
    assert "SMs not sourced" in "".join(card.itertext())
