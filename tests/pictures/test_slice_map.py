"""The whole map: names as text alone, marks, equal GPUs, places to choose, what is looked for."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.support.app.fleets import A100, cut, demanding, drawn, gpu, of_class, plan, span, tenant, title
from tests.support.app.values import plan as solved
from torchsplit_core.pictures.colours import model_colours
from torchsplit_core.pictures.slice_map import MOST_CARDS, MOST_ROWS, fleet_svg
from torchsplit_core.pictures.slices.drawing import WIDTH
from torchsplit_core.pictures.slices.row import HEAD, HEIGHT

HOSTILE = [
    "<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "&amp;", "a\x00\x1b\u202eb", "]]>",
    "x" * 500,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_text(name):
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


def test_no_name_can_end_the_html_early():
    """Markdown ends a block of HTML at a blank line and would interpret what follows."""
    name = "a\n\n# heading <b>\r\n\u2028\u2029**x**"
    outcome = plan(gpu(name, A100, cut("7g.80gb", 0, tenant(name, stage=name, variant=name))))
    text = fleet_svg(outcome, model_colours([name]))
    assert len(text.splitlines()) == 1
    assert text.startswith("<div")


def test_marked_slices_are_framed_with_their_word_and_part_equal_gpus():
    base = solved()
    twice = replace(base, gpus=(base.gpus[0], replace(base.gpus[0], id="gpu1")))
    assert fleet_svg(twice, {}).count("× 2") == 1 and 'class="mark"' not in fleet_svg(twice, {})
    marked = fleet_svg(twice, {}, marks={("gpu1", 4): "<new>"})
    assert "× 2" not in marked and marked.count('class="mark"') == 1
    assert "<new>" not in marked and "3g.40gb ocr whole 300" in marked and "&lt;new&gt;" in marked


def test_a_card_of_several_opens_to_say_which():
    slices = (cut("7g.80gb", 0, tenant("<b>bert</b>")),)
    both = plan(gpu("gpu0", A100, *slices), gpu("gpu1", A100, *slices), gpu("gpu2", A100))
    text = fleet_svg(both, {})
    assert text.count("<details") == 1 and "2 GPUs alike" in text and "gpu0 to gpu1" in text
    assert "7g.80gb at slot 0: &lt;b&gt;bert&lt;/b&gt; 100" in text


def test_places_are_named_from_left_to_right_only_where_they_are_wanted():
    outcome = plan(gpu("a b", A100, cut("1g.10gb", 2, tenant("bert")), cut("3g.40gb", 4)))
    assert "data-place" not in fleet_svg(outcome, {}) and 'role="group"' not in fleet_svg(outcome, {})
    card = drawn(outcome, places=True)[0]
    found = [node.get("data-place") for node in card.iter() if node.get("data-place")]
    assert found == ["0 a b", "2 a b", "3 a b", "4 a b"] and card.get("role") == "group"
    # What nothing can use cannot be chosen.
    full = plan(gpu(
        "gpu0", A100, cut("4g.40gb", 0, tenant("bert")), cut("1g.10gb", 4), cut("1g.10gb", 5),
        cut("1g.10gb", 6),
    ))  # fmt: skip
    places = [node.get("data-place") for node in drawn(full, places=True)[0].iter() if node.get("data-place")]
    assert places == ["0 gpu0", "4 gpu0", "5 gpu0", "6 gpu0"]


def test_a_large_fleet_is_folded_and_can_be_searched():
    gpus = [
        gpu(f"n{i // 8}/gpu{i}", A100, cut("7g.80gb", 0, tenant(f"m{i % 40}", 100.0 + i % 40)))
        for i in range(1024)
    ]
    large = plan(*gpus)
    text = fleet_svg(large, {})
    root = ElementTree.fromstring(text.replace(' xmlns="http://www.w3.org/2000/svg"', ""))
    (more,) = (element for element in root.iter("details") if element.get("data-group") == "more")
    folded = [element for element in more.iter("svg") if element.get("role") == "img"]
    assert len(folded) == 40 - MOST_ROWS and "4 more kinds" in "".join(more.itertext())
    for wanted, count in (("GPU1023", 1), ("m17", 1), ("a100", 40), ("7g", 40), (" n0/ ", 8)):
        assert len(drawn(large, find=wanted)) == count, wanted
    nothing = fleet_svg(large, {}, find="<b>")
    assert "No GPU, slice or model has &lt;b&gt;" in nothing and 'role="img"' not in nothing


def test_more_kinds_than_cards_have_room_for_are_a_row_each():
    def fleet(kinds):
        return plan(
            *(
                gpu(f"gpu{i}", A100, cut("1g.10gb", 0, tenant("<b>", 900.0 + i)), cut("3g.40gb", 4))
                for i in range(kinds)
            ),
            gpu("twin", A100, cut("1g.10gb", 0, tenant("<b>", 900.0)), cut("3g.40gb", 4)),
        )

    def heights(outcome, **more):
        return {float(str(card.get("viewBox")).split()[3]) for card in drawn(outcome, **more)}

    few, many = fleet(MOST_CARDS), fleet(MOST_CARDS + 1)
    assert heights(few) != heights(many) == {HEIGHT}
    # What is looked for leaves the map in its form.
    assert heights(many, find="gpu3") == {HEIGHT}
    row, *_ = drawn(many, places=True, request=demanding({"<b>": 2 * many.models[0].throughput_rps}))
    places = [node.get("data-place") for node in row.iter() if node.get("data-place")]
    assert places == ["0 gpu0", "1 gpu0", "4 gpu0"] and row.get("role") == "group"
    assert [span(node)[0] for node in of_class(row, "slice", "free")] == [1.0, 4 * (WIDTH - HEAD) / 8 + 1]
    assert "".join(next(row.iter("title")).itertext()) == "gpu0, twin"
    # The load stands where it cannot be met, and then no half of the throughput.
    (over,) = of_class(row, "over", tag="g")
    assert "".join(over.itertext()) == "200%"
    assert [text.text for text in next(of_class(row, "tenant")).iter("text")] == ["200%", "<b>"]
    text = fleet_svg(many, {}, marks={("gpu1", 0): "new"})
    assert "Which GPUs are alike" in text and "2: gpu0, twin" in text and text.count('class="mark"') == 1
    assert "memory slots over" not in text and ">compute slices" not in text
