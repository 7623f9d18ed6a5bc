"""Escapes text for drawings and fits it into a width. SVG cannot measure text, so widths are estimated."""

from __future__ import annotations

import html
import re

from torchsplit_core.pictures.numbers import THIN
from torchsplit_core.values import profile_words

# Width of a character as a share of the font size, enough for the usual sans-serif fonts.
_LETTER, _LETTER_BOLD = 0.58, 0.63

# Characters forbidden in XML or able to reorder text around them; line breaks are allowed, for titles.
_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def profile_name(name: str, width: float) -> str:
    """The profile's name, or its compute part if the slice is too narrow."""
    name = profile_words(name)
    return name if text_width(name, 11) <= width - 12 else re.split(r"[. ]", name, maxsplit=1)[0]


def wrapped(name: str, room: float, size: float, rows: int = 3) -> list[str]:
    """Wrap the name onto at most `rows` lines, at separators and numbers if possible.

    A name that is too long loses its middle, since names of one family differ at their ends.
    """
    letters = max(2, int(room / (size * _LETTER_BOLD)))
    lines = _broken(name, letters)
    # Breaks at words leave lines unfilled, so the shortened name may still need a line too many.
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
    """The text, without its middle if too long: "densenet121" and "densenet169" remain distinct."""
    return _middle_out(text, max(1, int(room / (size * (_LETTER_BOLD if bold else _LETTER)))))


def _middle_out(text: str, letters: int) -> str:
    if len(text) <= letters:
        return text
    end = (letters - 1) // 2
    return text[: letters - 1 - end] + "…" + (text[-end:] if end else "")


def fitted(text: str, room: float, size: float, *, bold: bool = False) -> str:
    """The text, without its end if too long."""
    letters = max(1, int(room / (size * (_LETTER_BOLD if bold else _LETTER))))
    return text if len(text) <= letters else text[: letters - 1] + "…"


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Estimated width of a text in pixels."""
    narrow = text.count(THIN) + text.count(".")
    return (len(text) - narrow * 0.5) * size * (_LETTER_BOLD if bold else _LETTER)


def escaped(value: str) -> str:
    """Escape text for an element; control characters, also bidirectional ones, become a visible U+FFFD."""
    return html.escape(_UNSAFE.sub("\ufffd", value), quote=False).replace("\n", "&#10;")


def escaped_attribute(value: str) -> str:
    """Escape text for an attribute in double quotes, with control characters as in `escaped`."""
    return html.escape(_UNSAFE.sub("\ufffd", value), quote=True).replace("\n", "&#10;")
