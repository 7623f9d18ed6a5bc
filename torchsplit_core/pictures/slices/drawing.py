"""Sizes of a card, and elements that several parts draw: lines of text, hatches, frames, marks."""

from __future__ import annotations

from torchsplit_core.pictures.svg_text import escaped, escaped_attribute, profile_name, text_width

WIDTH, BODY, GAP = 400.0, 100.0, 2.0
"""Pixels of a card: its width, the height of its slices, the space between two of them."""
TAG = "#1b1f24"
"""Background of white text on a slice, in either theme."""
OVER = "#b42318"
"""Colour of frame, hatch and tag of loads above 100 %, in either theme."""
HATCH_STEP, OVER_STEP = 8, 12
"""Pixels between two strokes of a hatch, for unused and for overloaded slices."""
STAYS = "stays"
"""The mark of a slice that nothing happens to: without a frame, which is for changes."""
MARK_SIGNS = {"new": "+", "goes": "−", "drain": "~", "changes": "~", "other model": "~", STAYS: "="}
"""Signs for marks whose word does not fit; the title has the word."""


def line(x: float, y: float, text: str, size: float, *, bold: bool = False) -> str:
    """One line of text; "" for an empty text."""
    if not text:
        return ""
    weight = ' font-weight="700"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{weight}>{escaped(text)}</text>'


def hatch(width: float, height: float = BODY, *, over: bool = False) -> str:
    """Diagonal strokes over a box, for an unused or (`over`) overloaded slice."""
    step = OVER_STEP if over else HATCH_STEP
    strokes = "".join(
        f"M{x:g} {height:g}L{x + height:g} 0" for x in range(-int(height), int(width) + 1, step)
    )
    stroke = (
        f'"{OVER}" stroke-opacity=".3" stroke-width="1.5"' if over else '"currentColor" stroke-opacity=".2"'
    )
    return f'<path d="{strokes}" stroke={stroke} fill="none"/>'


def unused(
    left: float,
    width: float,
    lines: tuple[str, ...],
    title: str,
    *,
    faint: bool = False,
    place: str = "",
    height: float = BODY,
) -> str:
    """An unused part of a GPU or slice, hatched, not filled; `faint`: a dashed frame, for slots without a slice."""
    texts = "".join(
        line(5, 15 + row * 17, text, 11)
        for row, text in enumerate(lines)
        if text_width(text, 11) <= width - 7
    )
    dash = ' stroke-dasharray="3 3"' if faint else ""
    return (
        f'<svg class="{"gap" if faint else "free"}"{chosen_by(place)} x="{left:.2f}" y="0" width="{width:.2f}"'
        f' height="{height:g}"><title>{escaped(title)}</title>{hatch(width, height)}'
        f'<rect x=".75" y=".75" width="{max(width - 1.5, 0.5):g}" height="{height - 1.5:g}" rx="4"'
        f' fill="currentColor" fill-opacity=".03" stroke="currentColor" stroke-opacity=".35"{dash}/>{texts}'
        f"{edge(place, width, height)}</svg>"
    )


def chosen_by(place: str) -> str:
    """The attribute by which a page identifies the selected slice."""
    return f' data-place="{escaped_attribute(place)}"' if place else ""


def edge(place: str, width: float, height: float = BODY) -> str:
    """A frame that is visible only while its slice is selected or has the focus."""
    if not place:
        return ""
    return (
        f'<rect class="edge" x="2" y="2" width="{max(width - 4, 1):.2f}" height="{height - 4:g}" rx="3"'
        ' fill="none" stroke="currentColor" stroke-width="4"/>'
    )


def mark(left: float, width: float, profile: str, word: str, height: float = BODY) -> str:
    """A frame around a slice that changes, and a tag at its upper right: the word, or its sign in a small slice."""
    room = width - text_width(profile_name(profile, width), 11) - 18
    fits = height == BODY and text_width(word, 11, bold=True) <= room
    shown = word if fits else MARK_SIGNS.get(word, "~")
    frame = (
        ""
        if word == STAYS
        else f'<rect x="1.5" y="1.5" width="{max(width - 3, 1):.2f}" height="{height - 3:g}" rx="4" fill="none"'
        ' stroke="currentColor" stroke-width="3" stroke-dasharray="7 3"/>'
    )
    wide, high = text_width(shown, 11, bold=True) + 8, min(16.0, height / 2)
    return (
        f'<svg class="mark" x="{left:.2f}" y="0" width="{width:.2f}" height="{height:g}"><title>{escaped(word)}</title>'
        f'{frame}<rect x="{width - wide - 3:.2f}" y="3" width="{wide:.2f}" height="{high:g}" rx="3" fill="{TAG}"/>'
        f'<text x="{width - wide / 2 - 3:.2f}" y="{high - 1:g}" font-size="11" font-weight="700" text-anchor="middle"'
        f' fill="#ffffff">{escaped(shown)}</text></svg>'
    )
