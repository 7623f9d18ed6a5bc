"""The page of one scenario: its plan, what stands beside it, and its files."""

from __future__ import annotations

from app.plan import page as plan_page
from app.session.thing import SCENARIO
from app.shell import address, frame
from torchsplit_core.jobs.job_kinds import EXPLAIN, MEASURE, PLAN, QUICK_START, RUN_HERE, SWEEP


def show(first: str = plan_page.TITLES[0]) -> None:
    """The whole page, at the tab of the address, else at the `first`."""
    opened = frame.opened_workspace()
    known = SCENARIO.known(opened)
    # The address of a scenario that is not here is kept: the page says so.
    missing = SCENARIO.asked_in_vain(known)
    name = missing or SCENARIO.current(opened, known)
    tab = address.turned(address.TAB, plan_page.TITLES, plan_page.TAB, first)
    address.settle(opened, {SCENARIO.word: name, address.TAB: tab})
    shown = next((title for title in plan_page.TITLES if address.slug(title) == tab), first)
    frame.head(
        opened,
        "Plan",
        shown,
        *filter(None, (name,)),
        failures=(PLAN, EXPLAIN, SWEEP, QUICK_START, MEASURE, RUN_HERE),
    )
    plan_page.show(opened, first)
