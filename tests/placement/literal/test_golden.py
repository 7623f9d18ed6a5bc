"""Every family of the literal program stands in a golden LP file, in the document and in the program, and all agree."""

import pyomo.environ as pyo
import pytest

from tests.support.placement.golden import GOLDEN, families, family_text, rows_of, small
from tests.support.placement.programs import PROGRAMS
from torchsplit_core.placement.literal import formulation

NAMES = [name for name, _, _ in families()]


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_are_the_golden_ones(name):
    golden = (GOLDEN / f"{name}.lp").read_text(encoding="utf-8")
    assert family_text(name) == golden, "run python -m tools.write_placement_lps and look at what changed"


def test_document_program_and_golden_files_have_the_same_families():
    assert {path.stem for path in GOLDEN.glob("*.lp")} == {*NAMES, *PROGRAMS}
    assert {item.local_name for item in small().model.component_objects(pyo.Constraint)} == set(NAMES)
    assert families() == rows_of(formulation.__doc__ or "")
    for _, _, function in families():
        assert callable(getattr(formulation, function))
