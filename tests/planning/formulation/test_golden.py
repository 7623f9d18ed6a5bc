"""Every constraint family stands in a golden LP file, in the document and in the program, and all agree."""

import re
from types import ModuleType

import pytest

from tests.support.planning.golden import (
    BUILDS,
    DOCS,
    GOLDEN,
    MATRICES,
    NAMES,
    Row,
    constraint_names,
    family_of,
    golden_text,
    table,
)
from torchsplit_core.planning.formulation import build as formulation_build
from torchsplit_core.planning.patterns import master, share_program

FAMILIES = "| family | formula | function |\n"
ROWS = "| row | formula |\n"
LEVELS = "## Objectives"
PROGRAMS: dict[str, ModuleType] = {
    "planning/patterns/master.py": master,
    "planning/patterns/share_program.py": share_program,
}
"""Modules that hand a matrix to HiGHS, by the path under which the document names them."""


def documented() -> list[str]:
    """The families of the document's tables: of the constraints, and of the objectives."""
    text = DOCS.read_text(encoding="utf-8")
    rows = table(text, FAMILIES) + table(text.split(LEVELS, 1)[1], FAMILIES)
    return [name for names, _, _ in rows for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_the_program_is_the_golden_one(name):
    golden = (GOLDEN / f"{name}.lp").read_text(encoding="utf-8")
    assert golden_text(name) == golden, "run python -m tools.write_golden_lps and look at what changed"


def test_every_family_has_a_golden_file_and_every_golden_file_a_family():
    files = {path.stem for path in GOLDEN.glob("*.lp")}
    assert files == set(NAMES)
    families = documented()
    assert len(families) == len(set(families))
    assert {name.split("-")[0] for name in files - set(MATRICES)} == set(families)


def test_every_constraint_belongs_to_a_documented_family():
    families, met = documented(), set()
    for build in BUILDS.values():
        for component in constraint_names(build()):
            family = family_of(component, families)
            assert family is not None, f"{component} is in no table of docs/internals/formulations.md"
            met.add(family)
    assert met == set(families)


def test_the_document_and_the_formulation_have_the_same_table():
    there = table(DOCS.read_text(encoding="utf-8"), FAMILIES)
    here = table(formulation_build.__doc__ or "", FAMILIES)
    assert len(there) == len(here) > 20
    for mine, other in zip(there, here, strict=True):
        assert _names_agree(mine, other) and mine[1:] == other[1:], (mine, other)


def _names_agree(documented: Row, told: Row) -> bool:
    """Equal, or told as one beginning: presence for presence_up and presence_down."""
    if documented[0] == told[0]:
        return True
    return len(told[0]) == 1 and all(name.startswith(f"{told[0][0]}_") for name in documented[0])


@pytest.mark.parametrize(("path", "golden"), zip(PROGRAMS, ("master", "pooled"), strict=True))
def test_the_rows_of_a_matrix_are_told_in_its_table(path, golden):
    text = DOCS.read_text(encoding="utf-8")
    there = table(text.split(f"`{path}`", 1)[1], ROWS)
    assert there == table(PROGRAMS[path].__doc__ or "", ROWS)
    rows = re.findall(r"^ (\w+)\([^)]*\):", (GOLDEN / f"{golden}.lp").read_text(encoding="utf-8"), re.M)
    assert set(rows) == {re.sub(r"\[.*", "", names[0]) for names, _, _ in there}
