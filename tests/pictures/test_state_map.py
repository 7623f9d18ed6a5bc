"""The map of a host's state: instances at their slots, who uses them by name, what is free, and no figure of a load."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.support.app.fleets import of_class, span, tenant, title
from torchsplit_core.hardware import gpu_type, legal_layouts
from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.pictures.slice_map import MOST_CARDS, state_svg
from torchsplit_core.pictures.slices.drawing import GAP, WIDTH
from torchsplit_core.values import WHOLE_GPU, ForeignTenant, HostState, StateGpu, StateInstance

A100 = "A100-80GB"
PROCESS = ForeignTenant("process 4711")
BERT = tenant("bert")
MIXED = StateGpu(
    "node0/gpu0", A100, mig_enabled=True,
    instances=(
        StateInstance("2g.20gb", 2, None, (BERT,)), StateInstance("1g.10gb", 0, None, ()),
        StateInstance("3g.40gb", 4, None, (PROCESS, ForeignTenant("a <pod>"))),
    ),
)  # fmt: skip
UNKNOWN = replace(MIXED, id="node0/gpu1", instances=(StateInstance("4g.40gb", 0),))
IDLE = StateGpu("node0/gpu2", A100, mig_enabled=False)
WHOLE = StateGpu("node0/gpu3", "T4-16GB", instances=(StateInstance(WHOLE_GPU, 0, None, (PROCESS,)),))


def cards(*gpus: StateGpu, **more) -> list[ElementTree.Element]:
    """The cards, parsed strictly."""
    text = state_svg(HostState(gpus), {"bert": "#3f66cc"}, **more).replace(
        ' xmlns="http://www.w3.org/2000/svg"', ""
    )
    root = ElementTree.fromstring(f"<root>{text}</root>")
    return [element for element in root.iter("svg") if element.get("role") in ("img", "group")]


def test_every_instance_is_at_its_slots_and_says_who_uses_it():
    (card,) = cards(MIXED)
    slot = WIDTH / 8
    boxes = {
        name: [span(item) for item in of_class(card, name)] for name in ("free", "slice", "foreign", "gap")
    }
    expected = {"free": (0, 1), "slice": (2, 2), "foreign": (4, 4), "gap": (1, 1)}
    for name, (start, slots) in expected.items():
        assert np.allclose(boxes[name], [(start * slot + GAP / 2, slots * slot - GAP)], atol=1e-2), name
    (foreign,) = of_class(card, "foreign")
    assert title(foreign) == "process 4711, a <pod>\n3g.40gb at slot 4\nnot placed by a plan"
    assert "bert" in title(next(of_class(card, "tenant")))
    assert not list(of_class(card, "load", "headroom", tag="rect")), "the load of a state is not known"
    assert card.get("aria-label") == (
        f"node0/gpu0, A100-80GB, MIG on: 1g.10gb free; 2g.20gb bert whole 100{THIN}req/s; "
        "3g.40gb process 4711, a <pod>"
    )


def test_marks_are_tags_and_only_what_changes_has_a_frame():
    marks = {("node0/gpu0", 2): "stays", ("node0/gpu0", 4): "goes"}
    first, second = cards(MIXED, replace(MIXED, id="node0/gpu9"), marks=marks)
    stays, goes = of_class(first, "mark")
    assert (title(stays), title(goes)) == ("stays", "goes") and not list(of_class(second, "mark"))
    frames = [[rect.get("stroke-dasharray") for rect in item.iter("rect")] for item in (stays, goes)]
    assert frames == [[None], ["7 3", None]]
    assert "2g.20gb bert whole" in first.get("aria-label", "") and ", stays;" in first.get("aria-label", "")


def test_unknown_tenants_whole_gpus_and_idle_ones_say_so():
    unknown, idle, whole = cards(UNKNOWN, IDLE, WHOLE)
    hint = "unknown tenants\n4g.40gb at slot 0\nnothing says what runs here"
    assert title(next(of_class(unknown, "foreign"))) == hint
    (small,) = of_class(cards(replace(UNKNOWN, instances=(StateInstance("1g.10gb", 6),)))[0], "foreign")
    assert [text.text for text in small.iter("text")] == ["1g", "?"] and title(small).startswith(
        "unknown tenants\n"
    )
    assert title(next(of_class(idle, "gap"))).startswith("A100-80GB: nothing runs on it")
    assert "MIG off" in "".join(idle.itertext()) and "MIG" not in "".join(whole.itertext())
    assert span(next(of_class(whole, "foreign"))) == pytest.approx((GAP / 2, WIDTH - GAP))
    ready = replace(IDLE, mig_enabled=True)
    assert title(next(of_class(cards(ready)[0], "gap"))).startswith("No slice here; a profile would fit")


def test_somebody_beside_a_tenant_of_a_plan_is_named_with_it():
    shared = replace(MIXED, instances=(StateInstance("7g.80gb", 0, None, (BERT, PROCESS)),))
    (foreign,) = of_class(cards(shared)[0], "foreign")
    assert title(foreign).startswith("bert, process 4711\n")


def test_equal_gpus_share_a_card_and_others_do_not():
    twins = [replace(MIXED, id=f"node0/gpu{number}") for number in range(3)]
    assert len(cards(*twins)) == 1 and "3 GPUs alike" in state_svg(HostState(tuple(twins)), {})
    assert "process 4711, a &lt;pod&gt;" in state_svg(HostState(tuple(twins)), {})
    assert len(cards(MIXED, replace(MIXED, mig_enabled=None, id="x"))) == 2
    text = state_svg(HostState((MIXED, UNKNOWN)), {})
    assert "not placed by a plan, or not known</span>" in text and "free slice</span>" in text
    assert "not placed" not in state_svg(HostState((IDLE,)), {})


def test_many_are_rows_and_a_search_finds_who_uses_them():
    layouts = [layout.placed for layout in legal_layouts(gpu_type(A100)) if layout.placed][: MOST_CARDS + 1]
    gpus = [
        StateGpu(f"n/gpu{number}", A100, None, True,
                 tuple(StateInstance(item.profile, item.start) for item in placed))
        for number, placed in enumerate(layouts)
    ]  # fmt: skip
    rows = cards(*gpus)
    assert len(rows) == len(gpus) and all(len(list(of_class(row, "foreign"))) for row in rows)
    (match,) = cards(MIXED, UNKNOWN, find="4711")
    assert str(match.get("aria-label")).startswith("node0/gpu0")
    (chosen,) = of_class(cards(MIXED, places=True)[0], "foreign")
    assert chosen.get("data-place") == "4 node0/gpu0"
