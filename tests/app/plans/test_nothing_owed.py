"""Fewest GPUs where no model has a minimum: nothing is planned, and every tab of the page stands."""

from dataclasses import replace

from app.plans.page import TAB, TITLES
from tests.support.app.page import turn_to
from tests.support.app.values import request
from torchsplit_core.planning import plan as solved
from torchsplit_core.values import Objective


def test_fewest_gpus_without_a_minimum_break_no_tab(page, workspace):
    asked = replace(request(), objective=Objective("min_gpus"))
    workspace.put("plan_request", "review", asked)
    opened = page("plan", workspace)
    assert opened.button(key="plan").disabled
    # A version before this one planned it.
    workspace.put("plan", "review", solved(asked))
    for tab in TITLES:
        turn_to(opened, TAB, tab)
        assert not opened.exception, tab
        assert [element for element in opened.button if element.key == "demands-as-minima"]
