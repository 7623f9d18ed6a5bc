"""The SVG file: XML that holds every item, and in which a model's names are text and nothing else."""

import xml.etree.ElementTree as ElementTree
from xml.dom import minidom

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawing.cases import TARGETS, encoder, looks, model
from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.drawing.scene import Scene, layout_scene
from torchsplit_core.drawing.svg import DARK, LIGHT, Fill, path, render_svg
from torchsplit_core.drawing.view import build_view
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode

NAMESPACE = "{http://www.w3.org/2000/svg}"
RELU, _, ADD = TARGETS
HARMLESS = [
    '</text></g></svg><script>alert("1")</script>', "<![CDATA[ & &amp; ]]> <!-- -->", "\" onload='x' ",
    "𝔘nicode ✓ ↲ \u202e", "x" * 50_000,
]  # fmt: skip
REPLACED = [
    ("\x00\x08\x0b\x1b\x7f\ufffe\uffff", "����\x7f��"),
    ("a lone \ud800 and \udfff", "a lone � and �"),
]


def picture(graph: TorchGraph, *opened: str) -> Scene:
    hierarchy = Hierarchy(graph)
    return layout_scene(hierarchy, build_view(hierarchy, opened))


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text.encode("utf-8"))


def texts(root: ElementTree.Element, tag: str = "text") -> list[str]:
    return [element.text or "" for element in root.iter(f"{NAMESPACE}{tag}")]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(looks(), st.booleans())
def test_every_item_line_and_stub_is_there(look, dark):
    hierarchy, opened, unfolded = look
    scene = layout_scene(hierarchy, build_view(hierarchy, opened, unfolded))
    root = parsed(render_svg(scene, dark=dark))
    drawn = [*((box, item.label) for box, item in zip(scene.boxes, scene.view.items, strict=True))]
    drawn += [(stub.box, f"{stub.label} ↲") for stub in scene.stubs]
    rectangles = list(root.iter(f"{NAMESPACE}rect"))[1:]
    assert [
        tuple(float(rectangle.attrib[name]) for name in ("x", "y", "width", "height"))
        for rectangle in rectangles
    ] == [pytest.approx((box.x, box.y, box.width, box.height), abs=0.051) for box, _ in drawn]
    titles = texts(root, "title")[1:]
    assert all(title.startswith(label) for title, (_, label) in zip(titles, drawn, strict=True))
    arrows = sum(line.arrow for line in scene.lines)
    assert len(list(root.iter(f"{NAMESPACE}path"))) == len(scene.lines) + arrows


@pytest.mark.parametrize(("name", "shown"), [*((name, name) for name in HARMLESS), *REPLACED])
def test_a_hostile_name_is_text(name, shown):
    module = name.replace(".", "_")
    nodes = (
        GraphNode(name, "input", shape=(name,)),
        *(GraphNode(f"n{i}", "op", target=name, inputs=(name,), module=f"{module}.{i}") for i in range(8)),
        GraphNode("out", "output", inputs=("n7",)),
    )
    for opened in ((), [f"module:{module}"]):
        scene = picture(TorchGraph(nodes), *opened)
        text = render_svg(scene, title=name)
        root = parsed(text)
        tags = {element.tag.removeprefix(NAMESPACE) for element in root.iter()}
        assert tags <= {"svg", "title", "rect", "g", "text", "path"}
        assert not any(attribute.startswith("on") for element in root.iter() for attribute in element.attrib)
        minidom.parseString(text.encode("utf-8"))
        assert all(len(text) < 60 for text in texts(root))
        assert texts(root, "title")[0] == shown


def test_a_long_label_is_cut_and_whole_in_the_tooltip():
    root = parsed(render_svg(picture(model([("long" * 100, RELU), ("b", ADD)]))))
    (shown,) = (text for text in texts(root) if text.startswith("long"))
    assert shown.endswith("…") and len(shown) < 40
    assert any(title.startswith("long" * 100) for title in texts(root, "title"))


def test_light_and_dark_differ_in_colours_alone_and_hold_the_scene_with_a_margin():
    scene = picture(encoder(3), "module:encoder.layers")
    light, dark = render_svg(scene), render_svg(scene, dark=True)
    assert LIGHT.ground in light and DARK.ground in dark and LIGHT.ground not in dark
    for name in LIGHT.__slots__:
        dark = dark.replace(getattr(DARK, name), f"<{name}>")
        light = light.replace(getattr(LIGHT, name), f"<{name}>")
    assert light == dark
    left, top, width, height = map(float, parsed(render_svg(scene)).attrib["viewBox"].split())
    assert left < 0 and top < 0 and left + width > scene.width and top + height > scene.height


def test_bars_fill_their_share_and_none_where_there_is_no_share():
    scene = picture(model([("a", RELU), ("b", ADD)]))
    fills = [None, Fill(0.25, "#123456"), Fill(7.0, "#654321"), Fill(0.0, "#abcdef")]
    root = parsed(render_svg(scene, fills=fills))
    widths = {r.attrib["fill"]: float(r.attrib["width"]) for r in root.iter(f"{NAMESPACE}rect")}
    assert widths["#123456"] == pytest.approx(0.25 * scene.boxes[1].width, abs=0.051)
    assert widths["#654321"] == pytest.approx(scene.boxes[2].width, abs=0.051) and "#abcdef" not in widths


def test_a_number_of_bars_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="zip"):
        render_svg(picture(model([("a", RELU)])), fills=[None])


def test_a_route_is_straight_down_or_a_curve_that_leaves_and_arrives_upright():
    assert path([(1, 0), (1, 10), (5, 20)]) == "M1.0 0.0V10.0C1.0 15.0 5.0 15.0 5.0 20.0"
