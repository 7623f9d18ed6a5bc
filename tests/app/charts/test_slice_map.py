"""The slice map as what it is: SVG whose rectangles must be where the plan's slices are."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from app.charts.colours import HEADROOM_OPACITY, LOAD_OPACITY, PALETTE, model_colours
from app.charts.slice_map import BODY, GAP, WIDTH, fleet_svg
from app.charts.slice_values import Gap, gaps, gpu_groups, ranges, slice_table, stage_loads
from tests.support.app.values import plan as solved
from torchsplit_core.hardware import catalogue, legal_layouts
from torchsplit_core.values import (
    ObjectiveValue,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanStatistics,
    Tenant,
)

A100 = "A100-80GB"


def tenant(model: str, rps: float = 100.0, **changes: Any) -> Tenant:
    return replace(Tenant(model, "whole", "whole", 1.0, 8, 1, rps, 3.2), **changes)


def cut(profile: str, start: int, *tenants: Tenant) -> PlannedSlice:
    return PlannedSlice(profile, start, tenants)


def gpu(name: str, kind: str, *slices: PlannedSlice) -> PlannedGpu:
    return PlannedGpu(name, kind, bool(slices), slices)


def plan(*gpus: PlannedGpu, **normalised: float) -> PlanOutcome:
    given: dict[str, float] = {}
    for one in gpus:
        for item in one.slices:
            for who in item.tenants:
                given[who.model] = given.get(who.model, 0.0) + who.throughput_rps
    models = tuple(
        PlannedModel(name, "whole", rps, normalised.get(name, 2.0), 50.0) for name, rps in given.items()
    )
    goal, spent = ObjectiveValue("leximin", 1.0), PlanStatistics(0.1, 0.1, 0.1, "highs")
    return PlanOutcome("ab" * 32, "optimal", goal, gpus, models, spent)


MIXED = plan(
    gpu(
        "gpu0",
        A100,
        cut("4g.40gb", 0, tenant("clip", 1480.0)),
        cut("2g.20gb", 4, tenant("bert")),
        cut("1g.10gb", 6),
    ),
    gpu(
        "gpu1",
        "RTX-PRO-6000-Blackwell-96GB",
        cut("2g.48gb", 0, tenant("bert")),
        cut("1g.24gb", 9, tenant("ocr")),
    ),
)


def drawn(outcome: PlanOutcome, **arguments: Any) -> list[ElementTree.Element]:
    """The cards, parsed strictly."""
    colours = model_colours(model.name for model in outcome.models)
    text = fleet_svg(outcome, colours, **arguments).replace(' xmlns="http://www.w3.org/2000/svg"', "")
    root = ElementTree.fromstring(f"<root>{text}</root>")
    return [element for element in root.iter("svg") if element.get("role") in ("img", "group")]


def of_class(card: ElementTree.Element, *names: str) -> Iterator[ElementTree.Element]:
    return (element for element in card.iter("svg") if element.get("class") in names)


def span(element: ElementTree.Element) -> tuple[float, float]:
    return float(element.get("x", "nan")), float(element.get("width", "nan"))


def title(element: ElementTree.Element) -> str:
    found = element.find("title")
    assert found is not None
    return found.text or ""


def test_slices_stand_at_their_true_slots_and_to_scale() -> None:
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
def test_for_every_layout_slices_and_gaps_fill_the_gpu_without_overlap(kind: str) -> None:
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


def test_the_fill_is_as_high_as_the_load() -> None:
    (first, second) = drawn(MIXED, demands={"clip": 370.0, "bert": 150.0, "ocr": 900.0})
    heights = [float(element.get("height", "nan")) / (BODY - 1) for element in of_class(first, "load")]
    assert heights == pytest.approx([0.25, 0.75], abs=1e-3)
    heights = [float(element.get("height", "nan")) / (BODY - 1) for element in of_class(second, "load")]
    assert heights == pytest.approx([0.75, 1.0], abs=1e-3)
    titles = [title(element) for element in of_class(second, "tenant")]
    assert "900" in titles[1]


def test_without_demands_the_load_comes_from_the_normalised_throughput() -> None:
    loads = stage_loads(plan(gpu("g", A100, cut("7g.80gb", 0, tenant("m", 300.0))), m=4.0))
    assert loads == {("m", "whole"): pytest.approx(0.25)}


def test_each_stage_of_a_cut_model_has_its_own_load() -> None:
    stages = [tenant("m", 100.0, stage="a"), tenant("m", 100.0, stage="a"), tenant("m", 400.0, stage="b")]
    outcome = plan(gpu("g", A100, *(cut("1g.10gb", i, one) for i, one in enumerate(stages))))
    loads = stage_loads(outcome, {"m": 100.0})
    assert loads == {("m", "a"): pytest.approx(0.5), ("m", "b"): pytest.approx(0.25)}


def test_an_unknown_load_is_not_shown_as_zero() -> None:
    outcome = replace(MIXED, models=())
    assert stage_loads(outcome) == {}
    for card in drawn(outcome):
        assert not list(of_class(card, "load"))
        assert all("demand n/a" in title(element) for element in of_class(card, "tenant"))
    assert all(row["load %"] is None for row in slice_table(outcome))


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([("4g.40gb", 0), ("2g.20gb", 4), ("1g.10gb", 6)], [Gap(7, 1, False)]),
        ([("3g.40gb", 0), ("3g.40gb", 4)], []),
        ([("3g.40gb", 0)], [Gap(4, 4, True)]),
        ([("4g.40gb", 0), ("1g.10gb", 4), ("1g.10gb", 5)], [Gap(6, 2, True)]),
        ([("1g.10gb", i) for i in range(7)], [Gap(7, 1, False)]),
        ([("4g.40gb", 0), ("1g.10gb", 5), ("2g.20gb", 6)][:2], [Gap(4, 1, True), Gap(6, 2, True)]),
        ([], [Gap(0, 8, True)]),
    ],
)
def test_stranded_slots_are_told_from_those_that_could_be_cut(
    slices: list[tuple[str, int]], expected: list[Gap]
) -> None:
    found = gaps(catalogue()[A100], tuple(cut(profile, start) for profile, start in slices))
    runs = [Gap(gap.start, gap.slots, gap.usable) for gap in found]
    assert runs == expected


def test_equal_gpus_are_one_card_and_unused_ones_come_last() -> None:
    same = [gpu(f"n{i}/gpu0", A100, cut("7g.80gb", 0, tenant("m"))) for i in range(12)]
    outcome = plan(gpu("idle", A100), *same, gpu("other", A100, cut("7g.80gb", 0, tenant("n"))))
    assert [len(group.ids) for group in gpu_groups(outcome)] == [12, 1, 1]
    first, _, last = drawn(outcome)
    assert "× 12" in "".join(first.itertext())
    assert "n11/gpu0" in "".join(first.itertext())
    assert "12 GPUs alike" in first.get("aria-label", "")
    assert "not used" in "".join(last.itertext())


def test_tenants_of_a_slice_are_as_wide_as_their_shares_and_the_rest_is_free() -> None:
    shared = cut("4g.40gb", 0, tenant("a", share=0.25), tenant("b", share=0.5))
    (card,) = drawn(plan(gpu("g", A100, shared)))
    (box,) = of_class(card, "slice")
    _, whole = span(box)
    widths = [span(element)[1] for element in of_class(card, "tenant")]
    assert widths == pytest.approx([0.25 * whole, 0.5 * whole], abs=0.01)
    (rest,) = of_class(box, "free")
    assert span(rest)[0] == pytest.approx(0.75 * whole, abs=0.01)
    assert "25" in title(rest)


HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "&amp;",
    "a\x00\x1b\u202eb",
    "]]>",
    "x" * 500,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_text(name: str) -> None:
    outcome = plan(
        gpu(name, A100, cut("3g.40gb", 0, tenant(name)), cut("1g.10gb", 4, tenant(name, stage=name)))
    )
    (card,) = drawn(outcome)
    tags = {element.tag for element in card.iter()}
    assert tags <= {"svg", "g", "title", "text", "tspan", "rect", "path"}
    assert not any(key.startswith("on") for element in card.iter() for key in element.attrib)
    if name.isprintable():
        assert name in title(next(of_class(card, "tenant")))
    assert "\u202e" not in ElementTree.tostring(card, encoding="unicode")


def test_no_name_can_end_the_html_early() -> None:
    """Markdown ends a block of HTML at a blank line and would interpret what follows."""
    name = "a\n\n# heading <b>\r\n\u2028\u2029**x**"
    outcome = plan(gpu(name, A100, cut("7g.80gb", 0, tenant(name, stage=name, variant=name))))
    text = fleet_svg(outcome, model_colours([name]))
    assert len(text.splitlines()) == 1
    assert text.startswith("<div")


def test_text_fits_its_slice() -> None:
    names = ["densenet121", "mobilenetv2", "a-very-long-model-name-2024", "W" * 40, "m"]
    slices = [cut("1g.10gb", i, tenant(name, 123_456.0)) for i, name in enumerate(names)]
    wide = cut("3g.40gb", 0, tenant("W" * 40, stage="s" * 60, variant="v" * 60))
    for card in drawn(plan(gpu("a", A100, *slices), gpu("b", A100, wide))):
        for box in of_class(card, "tenant"):
            for text in box.iter("text"):
                # Half a font size a letter is less than any usual face needs.
                needed = len("".join(text.itertext())) * float(text.get("font-size", "nan")) * 0.5
                assert float(text.get("x", "nan")) + needed <= span(box)[1], "".join(text.itertext())


def test_gpus_whose_shares_differ_by_rounding_alone_are_one_card() -> None:
    almost = 0.9999999999999998
    whole, rounded = tenant("m", 100.0), tenant("m", 100.0 * almost, share=almost)
    alike = plan(gpu("a", A100, cut("7g.80gb", 0, whole)), gpu("b", A100, cut("7g.80gb", 0, rounded)))
    assert len(drawn(alike)) == 1
    assert [row["share"] for row in slice_table(alike)] == [1.0, 1.0]
    other = tenant("m", 99.9, share=0.999)
    assert len(drawn(plan(alike.gpus[0], gpu("b", A100, cut("7g.80gb", 0, other))))) == 2


def test_cards_speak_and_titles_carry_the_exact_figures() -> None:
    first, _ = drawn(MIXED)
    spoken = first.get("aria-label", "")
    assert spoken.startswith("gpu0, A100-80GB: 4g.40gb clip whole 1")
    assert spoken.endswith("1g.10gb free")
    exact = title(next(of_class(first, "tenant")))
    for figure in ("4g.40gb at slot 0", "batch 8", "processes 1", "3.2", "1\u202f480"):
        assert figure in exact
    assert "84 of 98 SMs planned" in "".join(first.itertext())


def test_unsourced_sms_are_not_counted_as_zero() -> None:
    (card,) = drawn(plan(gpu("g", "GB200-186GB", cut("7g.189gb", 0, tenant("m")))))
    assert "SMs not sourced" in "".join(card.itertext())


def test_the_table_has_every_tenant_and_every_free_slice() -> None:
    shared = cut("4g.40gb", 0, tenant("a", share=0.25), tenant("b", share=0.5, memory_gib=None))
    rows = slice_table(plan(gpu("g", A100, cut("1g.10gb", 4), shared)), {"a": 50.0, "b": 50.0})
    assert [(row["slice"], row["model"], row["share"], row["GiB"]) for row in rows] == [
        ("4g.40gb", "a", 0.25, 3.2),
        ("4g.40gb", "b", 0.5, None),
        ("1g.10gb", "free", None, None),
    ]
    assert [row["load %"] for row in rows] == [50.0, 50.0, None]
    assert len({tuple(row) for row in rows}) == 1


def test_a_model_keeps_its_colour_and_names_may_repeat() -> None:
    names = [f"m{i}" for i in range(15)]
    colours = model_colours(names)
    assert list(colours) == names
    assert len(set(colours.values())) == len(PALETTE) == 12
    assert model_colours([*names[:3], "m0", "m2"]) == {name: colours[name] for name in names[:3]}
    assert colours["m12"] == colours["m0"]


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def cielab(value: np.ndarray) -> np.ndarray:
    """sRGB (linear) to CIELAB with D65."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    x, y, z = (to_xyz @ value) / np.array([0.95047, 1.0, 1.08883])
    fx, fy, fz = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


# Machado, Oliveira, Fernandes: A physiologically-based model for simulation of color vision
# deficiency, 2009; severity 1.0.
SIGHT = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart_for_everyone(sight: str) -> None:
    seen = [cielab(np.clip(SIGHT[sight] @ linear(colour), 0, 1)) for colour in PALETTE]
    least = min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))
    assert least > (24 if sight == "usual" else 13)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_on_every_fill_has_enough_contrast(theme: str) -> None:
    config = tomllib.loads(Path(".streamlit/config.toml").read_text())["theme"][theme]
    plane = {
        name: np.array([int(config[name][i : i + 2], 16) for i in (1, 3, 5)]) / 255
        for name in ("textColor", "backgroundColor", "secondaryBackgroundColor")
    }
    text = plane.pop("textColor")

    def luminance(value: np.ndarray) -> float:
        lin = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
        return float(lin @ np.array([0.2126, 0.7152, 0.0722]))

    def contrast(one: np.ndarray, two: np.ndarray) -> float:
        low, high = sorted((luminance(one), luminance(two)))
        return (high + 0.05) / (low + 0.05)

    for ground in plane.values():
        for colour in PALETTE:
            ink = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
            pale = HEADROOM_OPACITY * ink + (1 - HEADROOM_OPACITY) * ground
            full = LOAD_OPACITY * ink + (1 - LOAD_OPACITY) * pale
            assert min(contrast(text, pale), contrast(text, full)) >= 4.5, (colour, theme)
        faint = 0.8 * text + 0.2 * ground
        assert contrast(faint, ground) >= 4.5


def test_marked_slices_are_framed_with_their_word_and_part_equal_gpus() -> None:
    base = solved()
    twice = replace(base, gpus=(base.gpus[0], replace(base.gpus[0], id="gpu1")))
    assert fleet_svg(twice, {}).count("× 2") == 1 and 'class="mark"' not in fleet_svg(twice, {})
    marked = fleet_svg(twice, {}, marks={("gpu1", 4): "<new>"})
    assert "× 2" not in marked and marked.count('class="mark"') == 1
    assert "<new>" not in marked and "3g.40gb ocr whole 300" in marked and "&lt;new&gt;" in marked


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (("gpu0", "gpu1", "gpu2", "gpu5"), "gpu0 to gpu2, gpu5"),
        (("gpu9", "gpu10", "gpu11"), "gpu9 to gpu11"),
        (("n0/gpu08", "n0/gpu09", "n0/gpu10", "n1/gpu11"), "n0/gpu08 to n0/gpu10, n1/gpu11"),
        (("gpu9", "gpu010"), "gpu9, gpu010"),
        (("a", "b", "gpu1"), "a, b, gpu1"),
        ((), ""),
    ],
)
def test_runs_of_names_are_joined(ids: tuple[str, ...], words: str) -> None:
    assert ranges(ids) == words


def test_a_card_of_several_opens_to_say_which() -> None:
    slices = (cut("7g.80gb", 0, tenant("<b>bert</b>")),)
    both = plan(gpu("gpu0", A100, *slices), gpu("gpu1", A100, *slices), gpu("gpu2", A100))
    text = fleet_svg(both, {})
    assert text.count("<details") == 1 and "2 GPUs alike" in text and "gpu0 to gpu1" in text
    assert "7g.80gb at slot 0: &lt;b&gt;bert&lt;/b&gt; 100" in text


def test_places_are_named_from_left_to_right_only_where_they_are_wanted() -> None:
    one = plan(gpu("a b", A100, cut("1g.10gb", 2, tenant("bert")), cut("3g.40gb", 4)))
    assert "data-place" not in fleet_svg(one, {}) and 'role="group"' not in fleet_svg(one, {})
    card = drawn(one, places=True)[0]
    found = [node.get("data-place") for node in card.iter() if node.get("data-place")]
    assert found == ["0 a b", "2 a b", "3 a b", "4 a b"] and card.get("role") == "group"
    # What nothing can use cannot be chosen.
    full = plan(
        gpu(
            "gpu0",
            A100,
            cut("4g.40gb", 0, tenant("bert")),
            cut("1g.10gb", 4),
            cut("1g.10gb", 5),
            cut("1g.10gb", 6),
        )
    )
    places = [node.get("data-place") for node in drawn(full, places=True)[0].iter() if node.get("data-place")]
    assert places == ["0 gpu0", "4 gpu0", "5 gpu0", "6 gpu0"]
