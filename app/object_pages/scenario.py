"""The page of one scenario, with its tabs."""

from __future__ import annotations

from app.plans import page as plan_page
from app.plans.deploy import state_choice
from app.session.result_kind import SCENARIO
from app.shell import address, frame
from torchsplit_core.jobs.job_kinds import (
    APPLY,
    DAY,
    DAY_CURVE,
    DAY_REPLAY,
    EXPLAIN,
    HELD_OUT,
    MEASURE,
    PLAN,
    QUICK_START,
    RUN_HERE,
    SWEEP,
)


def render(first: str = plan_page.TITLES[0]) -> None:
    """The whole page, at the tab of the address, else at the `first`."""
    opened = frame.opened_workspace()
    known = SCENARIO.names(opened)
    # The address of an unknown scenario stays as it is: the page says so.
    missing = SCENARIO.unknown_in_address(known)
    name = missing or SCENARIO.current(opened, known)
    tab = address.selected_tab(address.TAB, plan_page.TITLES, plan_page.TAB, first)
    state = address.selected_choice(address.FROM, state_choice.KEY)
    address.set_address(opened, {SCENARIO.word: name, address.TAB: tab, address.FROM: state})
    shown = next((title for title in plan_page.TITLES if address.slug(title) == tab), first)
    failures = (
        PLAN,
        EXPLAIN,
        SWEEP,
        DAY,
        DAY_CURVE,
        HELD_OUT,
        DAY_REPLAY,
        QUICK_START,
        MEASURE,
        RUN_HERE,
        APPLY,
    )
    frame.render_head(opened, "Plan", shown, *filter(None, (name,)), failures=failures)
    plan_page.render(opened, first)
