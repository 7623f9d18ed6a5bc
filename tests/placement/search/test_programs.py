"""The integer programs of the exact search and the curve: golden LP files, modules and document agree."""

import pytest

from tests.support.placement.golden import DOCS, GOLDEN
from tests.support.placement.programs import PROGRAMS, documented, rows_in, table_of


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_the_golden_one(name):
    golden = (GOLDEN / f"{name}.lp").read_text(encoding="utf-8")
    assert PROGRAMS[name][1]() == golden, "run python -m tools.write_placement_lps and look at what changed"


@pytest.mark.parametrize("name", PROGRAMS)
def test_document_module_and_golden_file_have_the_same_rows(name):
    module, _ = PROGRAMS[name]
    told = table_of(module.__doc__ or "")
    assert documented(module) == told
    assert told.pop("minimise")
    rows = rows_in((GOLDEN / f"{name}.lp").read_text(encoding="utf-8"))
    if name == "frontier-trails":
        rows -= rows_in((GOLDEN / "search-trail.lp").read_text(encoding="utf-8"))
    assert {row.split("[")[0] for row in told} == rows
    assert f"tests/placement/golden/{name}.lp" in DOCS.read_text(encoding="utf-8")
