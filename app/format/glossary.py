"""The words of docs/reference/metrics.md, and what a column head, a card or a badge on a page means by them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.format.word_aliases import ALIASES, EXTRA_EXPLANATIONS, PATTERNS

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST_CHARACTERS = 260
"""The most characters of an explanation on hover; Help has all of it."""
_TERM = re.compile(r"\*\*(.+?)\*\*")
_BARS = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z*0-9])")
_SPACES = re.compile(r"\s+")
_UNIT = re.compile(
    r"(,? (ms|s|req/s|requests/s|tokens/s|GB/s|GiB|%|×|W|MHz|°C)|, all models)$", re.IGNORECASE
)
"""The unit behind the word of a head."""


@dataclass(frozen=True, slots=True)
class GlossaryEntry:
    """An entry: the words it explains, what they mean, the chapter, and where it is shown."""

    title: str
    meaning: str
    chapter: str
    shown: str


@functools.cache
def read_entries(path: Path = DOCS / "reference" / "metrics.md") -> tuple[GlossaryEntry, ...]:
    """The entries of the tables, in their order."""
    entries, chapter = [], ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            chapter = line[3:].strip()
        cells = [cell.strip() for cell in _BARS.split(line)[1:-1]]
        if len(cells) == 5 and (title := _TERM.match(cells[0])):
            entries.append(GlossaryEntry(title[1], _LINK.sub(r"\1", cells[1]), chapter, cells[4]))
    return tuple(entries)


@functools.lru_cache(maxsize=4096)
def explain(shown: str) -> str:
    """What a text on a page means (the head of a column, a card, a badge), as plain text; "" where unknown."""
    text = _SPACES.sub(" ", shown).strip().lower()
    for key in dict.fromkeys((text, _UNIT.sub("", text), _UNIT.sub("", _UNIT.sub("", text)))):
        if key in EXTRA_EXPLANATIONS:
            return EXTRA_EXPLANATIONS[key]
        title = ALIASES.get(key, key)
        if title in _meanings():
            return _meanings()[title]
    for pattern, key in PATTERNS:
        if re.search(pattern, text):
            return EXTRA_EXPLANATIONS[key] if key in EXTRA_EXPLANATIONS else _meanings()[key]
    return ""


def column_explanations(names: Iterable[str]) -> dict[str, str]:
    """The explanations of a table's columns, by column; columns without one are left out."""
    return {name: text for name in names if (text := explain(str(name)))}


@functools.cache
def _meanings() -> dict[str, str]:
    """The short plain meaning by title in lower case; of "p50, p95, p99" by each of them too."""
    short = {word.title.lower(): _shorten(word.meaning) for word in read_entries()}
    parts = {part: text for title, text in short.items() for part in title.split(", ")}
    return parts | short


def _shorten(meaning: str) -> str:
    """The first sentence, and those after it while there is room."""
    plain = re.sub(r"[`*]|\\(?=\|)", "", meaning)
    first, *rest = _SENTENCE_END.split(plain)
    text = first
    for sentence in rest:
        if len(text) + len(sentence) >= MOST_CHARACTERS:
            break
        text = f"{text} {sentence}"
    return text[:1].upper() + text[1:]
