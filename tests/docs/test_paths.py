"""What the documents name lies where they say: files of the code, folders of the project, modules by their names."""

import re
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

CORE = ROOT / "torchsplit_core"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = (
    "app", "benchmarks", "docs", "examples", "pages", "sample_models", "tests", "tools", "torchsplit_core",
)  # fmt: skip
"""Folders of the project: what begins with one of them is a path of ours."""

Named = list[tuple[str, str]]
"""(document, what it names)."""


def in_backticks() -> Iterator[tuple[str, str]]:
    """Every word that stands alone in backticks, with its document."""
    for document in DOCUMENTS:
        for word in re.findall(r"`([^`\s]+)`", document.read_text(encoding="utf-8")):
            yield document.name, word


def python_files() -> Named:
    """Files that end in .py, but for the user's own: `.py` alone and `FILE.py`."""
    return [(document, word) for document, word in in_backticks() if re.fullmatch(r"[a-z_][\w/.]*\.py", word)]


def paths() -> Named:
    """Files of any kind and folders of the project."""
    return [
        (document, word) for document, word in in_backticks() if "/" in word and word.split("/")[0] in OURS
    ]


def modules() -> Named:
    """Dotted names, in backticks or in an example of Python."""
    return [
        (document.name, name)
        for document in DOCUMENTS
        for name in re.findall(r"\btorchsplit_core(?:\.\w+)+", document.read_text(encoding="utf-8"))
    ]


def test_every_python_file_that_is_named_exists():
    named = python_files()
    assert len(named) > 80 and ("formulations.md", "planning/patterns/master.py") in named
    # The documents name a file from the project's root, or from the core's as the tree of architecture.md does.
    assert [one for one in named if not any((root / one[1]).is_file() for root in (ROOT, CORE))] == []


def test_every_path_of_the_project_that_is_named_exists():
    named = paths()
    assert len(named) > 30 and ("CONTRIBUTING.md", "sample_models/registry.py") in named
    assert [one for one in named if not (ROOT / one[1]).exists()] == []


@pytest.mark.parametrize(("document", "name"), sorted(set(modules())))
def test_every_module_that_is_named_exists(document, name):
    found, *rest = name.split(".")
    folder = ROOT / found
    while rest and (folder / rest[0]).is_dir():
        folder /= rest.pop(0)
    source = folder / "__init__.py"
    if rest and (folder / f"{rest[0]}.py").is_file():
        source = folder / f"{rest.pop(0)}.py"
    assert len(rest) <= 1, document
    assert not rest or re.search(rf"\b{rest[0]}\b", source.read_text(encoding="utf-8")), document
