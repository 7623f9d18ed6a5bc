"""One set of words for how a search ends: told once, and a wrong one is a fault and no silent timeout."""

import ast
from typing import get_args

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli.common import EXIT_OF_STATUS
from torchsplit_core.planning import planner
from torchsplit_core.planning.fractional.plan import FractionalResult
from torchsplit_core.values import FleetEntry, InternalFault, PlanModel, PlanRequest, Point, Stage, Variant
from torchsplit_core.values.status import ProgramStatus, SearchVerdict, SolveStatus, Unsolved

SETS = [frozenset(get_args(one)) for one in (SolveStatus, Unsolved, ProgramStatus, SearchVerdict)]


def test_every_status_has_an_exit_code():
    assert set(EXIT_OF_STATUS) == set(get_args(SolveStatus)) and set(get_args(Unsolved)) < set(EXIT_OF_STATUS)


def test_the_words_are_told_in_one_place():
    for folder in ("torchsplit_core", "app"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "Literal" not in text or (path.name == "status.py" and path.parent.name == "values"):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
                    items = getattr(node.slice, "elts", [node.slice])
                    words = frozenset(item.value for item in items if isinstance(item, ast.Constant))
                    assert words not in SETS, f"{path}:{node.lineno}"


@pytest.mark.parametrize("status", ["optimal", "feasible"])
def test_a_search_that_claims_a_plan_it_has_not_is_no_timeout(status, monkeypatch):
    point = Point("A30-24GB", "1g.6gb", 1, 10.0, 5.0)
    model = PlanModel("m", (Variant("whole", (Stage("whole", (point,)),)),))
    request = PlanRequest((FleetEntry("A30-24GB"),), (model,), sharing="fractional")
    monkeypatch.setattr(planner, "plan_fractional", lambda *_: FractionalResult(status, None, {}))
    with pytest.raises(InternalFault, match=f"ended {status} without a plan"):
        planner.plan(request)
    monkeypatch.setattr(planner, "plan_fractional", lambda *_: FractionalResult("timeout", None, {}))
    assert planner.plan(request).status == "timeout"
