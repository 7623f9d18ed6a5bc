"""Renders a scene as SVG in the colours of the light or the dark theme; escapes the model's texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from torchsplit_core.drawing.layered_layout import Point
from torchsplit_core.drawing.scene import LABEL_WIDTH, NOTE_WIDTH, Box, Scene

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow, not even escaped."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of a theme."""

    ground: str
    frame: str
    box: str
    edge: str
    line: str
    text: str
    note: str


LIGHT = Palette("#fbfbf9", "#f1f1ee", "#ffffff", "#b9bfc4", "#7b858f", "#1b1f24", "#4b535d")
DARK = Palette("#0f1418", "#151b21", "#1b222a", "#3a444e", "#7d8b99", "#e6eaee", "#a9b4be")


@dataclass(frozen=True, slots=True)
class Fill:
    """An overlay's bar in a box, over `share` of its width."""

    share: float
    colour: str


def render_svg(
    scene: Scene, *, dark: bool = False, fills: Sequence[Fill | None] = (), title: str = "Dataflow"
) -> str:
    """The text of the SVG file. `fills` has one entry per item, or is empty."""
    colours = DARK if dark else LIGHT
    width, height = scene.width + 32, scene.height + 32
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-16 -16 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" role="img">',
        f"<title>{_text(title)}</title>",
        f'<rect x="-16" y="-16" width="{width:.0f}" height="{height:.0f}" fill="{colours.ground}"/>',
    ]
    marks = list(fills) or [None] * len(scene.boxes)
    for item, box, fill in zip(scene.view.items, scene.boxes, marks, strict=True):
        out.append(_rect(box, colours.frame if item.open else colours.box, colours.edge))
        if fill is not None and fill.share > 0:
            inner = Box(box.x, box.y, box.width * min(fill.share, 1.0), box.height)
            out.append(_rect(inner, fill.colour, "none"))
        out.append(_texts(item.label, "" if item.open else item.note, box, colours, middle=not item.open))
    for stub in scene.stubs:
        out.append(_rect(stub.box, "none", colours.edge, dashed=True))
        out.append(_texts(f"{stub.label} ↲", "", stub.box, colours, middle=True, size=10))
    for line in scene.lines:
        out.append(f'<path d="{path(line.points)}" fill="none" stroke="{colours.line}"/>')
        if line.arrow:
            out.append(f'<path d="{_arrow(line.points)}" fill="{colours.line}"/>')
    return "\n".join([*out, "</svg>\n"])


def path(points: Sequence[Point]) -> str:
    """SVG path through a route: vertical at every point, straight between two points with the same x."""
    (x, y), *rest = points
    parts = [f"M{x:.1f} {y:.1f}"]
    for a, b in rest:
        if abs(a - x) < 0.05:
            parts.append(f"V{b:.1f}")
        else:
            middle = (y + b) / 2
            parts.append(f"C{x:.1f} {middle:.1f} {a:.1f} {middle:.1f} {a:.1f} {b:.1f}")
        x, y = a, b
    return "".join(parts)


def _arrow(points: Sequence[Point]) -> str:
    x, y = points[-1]
    back = -6 if len(points) < 2 or points[-2][1] <= y else 6
    return f"M{x:.1f} {y:.1f}l-3.5 {back}h7z"


def _rect(box: Box, fill: str, stroke: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5" '
        f'fill="{fill}" stroke="{stroke}"{dash}/>'
    )


def _texts(label: str, note: str, box: Box, colours: Palette, *, middle: bool, size: int = 13) -> str:
    """Label and note inside a box, truncated if too long; the tooltip has the whole text."""
    room = box.width - 16
    x, y = box.x + 10, box.y + (box.height / 2 + size * 0.35 if middle and not note else 18)
    whole = f"<title>{_text(f'{label} {note}'.strip())}</title>"
    elements = [
        f'<g>{whole}<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="600" fill="{colours.text}">'
        f"{_text(_cut(label, room / (LABEL_WIDTH * size / 13)))}</text>"
    ]
    if note:
        elements.append(
            f'<text x="{x:.1f}" y="{y + 15:.1f}" font-size="11" fill="{colours.note}">'
            f"{_text(_cut(note, room / NOTE_WIDTH))}</text>"
        )
    return "".join([*elements, "</g>"])


def _cut(text: str, characters: float) -> str:
    return text if len(text) <= characters + 1 else text[: max(int(characters) - 1, 1)] + "…"


def _text(text: str) -> str:
    return escape(FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))
