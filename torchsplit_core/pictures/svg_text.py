"""Words in a drawing: escaped, and no longer than their room. SVG cannot measure text, so widths are estimated."""

from __future__ import annotations

import html
import re

from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.values import profile_words

# Width of a letter as a share of the font size, wide enough for the usual sans-serif faces.
_LETTER, _LETTER_BOLD = 0.58, 0.63

# Forbidden in XML, or able to reorder the text around them; a line break may stand in a title.
_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def profile_name(name: str, width: float) -> str:
    """The profile's name, or its compute part where the slice is too narrow."""
    name = profile_words(name)
    return name if text_width(name, 11) <= width - 12 else re.split(r"[. ]", name, maxsplit=1)[0]


def wrapped(name: str, room: float, size: float, rows: int = 3) -> list[str]:
    """The name on up to so many lines, broken where it has a separator or a number if that fits.

    Where it does not, its middle is left out: names of one family differ at their ends.
    """
    letters = max(2, int(room / (size * _LETTER_BOLD)))
    lines = _broken(name, letters)
    # Breaks at words leave lines unfilled, so what is kept may still take a line too many.
    kept_letters = rows * letters
    while len(lines) > rows and kept_letters > rows:
        lines = _broken(_middle_out(name, kept_letters), letters)
        kept_letters -= 1
    return lines[:rows]


def _broken(name: str, letters: int) -> list[str]:
    lines: list[str] = []
    for part in re.findall(r"[^\W\d_]+|\d+|[\W_]+", name):
        if lines and len(lines[-1]) + len(part) <= letters:
            lines[-1] += part
        else:
            lines += [part[i : i + letters] for i in range(0, len(part), letters)]
    return lines


def shortened(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """The text, its middle left out where it would not fit: "densenet121" and "densenet169" stay apart."""
    return _middle_out(text, max(1, int(room / (size * (_LETTER_BOLD if bold else _LETTER)))))


def _middle_out(text: str, letters: int) -> str:
    if len(text) <= letters:
        return text
    end = (letters - 1) // 2
    return text[: letters - 1 - end] + "…" + (text[-end:] if end else "")


def fitted(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """The text, its end cut off where it would not fit."""
    letters = max(1, int(room / (size * (_LETTER_BOLD if bold else _LETTER))))
    return text if len(text) <= letters else text[: letters - 1] + "…"


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Pixels a text takes, estimated."""
    narrow = text.count(THIN) + text.count(".")
    return (len(text) - narrow * 0.5) * size * (_LETTER_BOLD if bold else _LETTER)


def escaped(value: str) -> str:
    """Escaped for an element. Control characters, and those that turn the direction, become visible."""
    return html.escape(_UNSAFE.sub("\ufffd", value), quote=False).replace("\n", "&#10;")


def escaped_attribute(value: str) -> str:
    """Escaped for an attribute in double quotes, as above."""
    return html.escape(_UNSAFE.sub("\ufffd", value), quote=True).replace("\n", "&#10;")
