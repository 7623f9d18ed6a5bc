"""docs/reference/metrics.md against the contract: it defines every number of the schemas, and names no others."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from app.format import glossary
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
FORMATS = sorted(path.stem.removeprefix("torchsplit.") for path in (DOCS / "schemas").glob("*.json"))
NAMED = re.compile(rf"\b({'|'.join(FORMATS)}) ((?:`[^`]+`(?:, )?)+)")
"""A format's name before one or more of its fields: plan `models[].latency_ms`, `models[].normalised`."""

Field = tuple[str, str]
"""(format, field): a field is its name behind that of what holds it, "models[].latency_ms"; at the top alone."""


@cache
def fields(form: str) -> tuple[frozenset[str], frozenset[str]]:
    """The fields of a format in its newest version, and those of them that hold numbers."""
    schema = json.loads((DOCS / "schemas" / f"torchsplit.{form}.json").read_text(encoding="utf-8"))
    root = _newest(schema)
    found = {}
    for name, numeric in _properties(schema, root, "", set()):
        found[name] = numeric or found.get(name, False)
    return frozenset(found), frozenset(name for name, numeric in found.items() if numeric)


def _newest(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The object that a file of the format is, in the newest of the versions that are read."""
    if "discriminator" in schema:
        versions = schema["discriminator"]["mapping"]
        target = versions[max(versions, key=int)]
    elif "$ref" in schema:
        target = schema["$ref"]
    else:
        return schema
    return schema["$defs"][target.rsplit("/", 1)[1]]


def _properties(
    schema: Mapping[str, Any], node: Mapping[str, Any], owner: str, seen: set[tuple[str, str]]
) -> Iterator[tuple[str, bool]]:
    """(field, whether it holds numbers) of an object and of all objects below it."""
    for name, kind in node.get("properties", {}).items():
        yield (f"{owner}.{name}" if owner else name), any(_is_number(leaf) for leaf, _ in _leaves(kind, ""))
        for leaf, marks in _leaves(kind, ""):
            if "$ref" in leaf:
                target = leaf["$ref"].rsplit("/", 1)[1]
                # A graph may hold graphs: their fields are those at the top.
                itself = schema.get("$ref") == leaf["$ref"]
                if not itself and (target, name + marks) not in seen:
                    seen.add((target, name + marks))
                    yield from _properties(schema, schema["$defs"][target], name + marks, seen)


def _leaves(kind: Mapping[str, Any], marks: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """What a field holds in the end, with a mark for every list ([]) and mapping ({}) around it."""
    for choice in (*kind.get("anyOf", ()), *kind.get("oneOf", ())):
        yield from _leaves(choice, marks)
    if isinstance(kind.get("items"), dict):
        yield from _leaves(kind["items"], marks + "[]")
    elif isinstance(kind.get("additionalProperties"), dict):
        yield from _leaves(kind["additionalProperties"], marks + "{}")
    elif "anyOf" not in kind and "oneOf" not in kind:
        yield kind, marks


def _is_number(leaf: Mapping[str, Any]) -> bool:
    return leaf.get("type") in ("number", "integer")


@cache
def named() -> frozenset[Field]:
    """The fields that docs/reference/metrics.md names."""
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    return frozenset(
        (form, field) for form, listed in NAMED.findall(text) for field in re.findall(r"`([^`]+)`", listed)
    )


@cache
def words() -> tuple[tuple[str, str], ...]:
    """(word, heading) of every row of the tables, in their order."""
    found, heading = [], ""
    for line in (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8").splitlines():
        heading = line.removeprefix("## ") if line.startswith("## ") else heading
        if row := re.match(r"\| \*\*(.+?)\*\* \|", line):
            found.append((row[1], heading))
    return tuple(found)


@pytest.mark.parametrize("form", FORMATS)
def test_every_number_of_a_schema_is_defined(form):
    _, numbers = fields(form)
    assert numbers
    assert sorted(numbers - {field for name, field in named() if name == form}) == []


def test_no_field_is_named_that_no_schema_has():
    assert sorted((form, field) for form, field in named() if field not in fields(form)[0]) == []


def test_a_word_is_defined_once_and_the_index_has_all_in_order():
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    index = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", text.split("## Index\n")[1])
    assert len({word for word, _ in words()}) == len(words()) > 50
    expected = sorted(words(), key=lambda row: row[0].lower())
    assert index == [(word, _anchor(heading)) for word, heading in expected]


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def test_the_words_that_are_not_used_stand_on_no_page_and_in_no_document():
    table = (
        (DOCS / "reference" / "metrics.md")
        .read_text(encoding="utf-8")
        .split("## Words that are not used\n")[1]
    )
    banned = [
        phrase.lower()
        for line in table.splitlines()
        if line.startswith('| "')
        for phrase in re.findall(r'"([^"]+)"', line.split("|")[1])
    ]
    assert "least-served" in banned and len(banned) > 5
    told = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "app").rglob("*.py"))]
    # benchmarks.md is written by the benchmarks, metrics.md has the table itself.
    told = [path for path in told if path.name not in ("metrics.md", "benchmarks.md")]
    read = {path: path.read_text(encoding="utf-8").lower() for path in told}
    assert len(read) > 50
    found = [
        (phrase, str(path.relative_to(ROOT))) for phrase in banned for path in read if phrase in read[path]
    ]
    assert found == []


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "docs/internals/formulations.md"])
def test_who_looks_for_a_figure_is_led_there(page):
    assert re.search(r"\]\((docs/|\.\./)?reference/metrics\.md\)", (ROOT / page).read_text(encoding="utf-8"))


def test_help_names_only_pages_that_there_are():
    menu = {
        "Models", "Plan", "LLM placements", "Training", "Training runs", "Evaluation", "Workspace", "Host",
    }  # fmt: skip
    shown = (ROOT / "app" / "shell" / "navigation.py").read_text(encoding="utf-8")
    assert all(f'"{title}"' in shown for title in menu)
    cells = [word.shown for word in glossary.read_entries() if word.shown[:1].isupper()]
    pages = {re.split(r"[:(,;]", part)[0].strip() for cell in cells for part in cell.split("; ")}
    assert len(cells) > 100 and {page for page in pages if page[:1].isupper()} - menu == set()
