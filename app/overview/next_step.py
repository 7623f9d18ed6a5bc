"""The next step that a user would most likely take in a workspace, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.plans.summary import SOLVED
from app.plans.verdict import verdict_of
from app.session.models import ModelEntry
from app.session.result_kind import SCENARIO
from app.session.workspace import read
from torchsplit_core import jobs
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do, the label of the link, its title in `navigation.PAGE_LINKS`, and the object there."""

    text: str
    label: str
    title: str
    name: str | None = None


def next_step(workspace: Workspace, entries: Sequence[ModelEntry], known: Sequence[str]) -> NextStep | None:
    """The next step; None in a workspace without models and scenarios."""
    if running := jobs.running(workspace):
        return NextStep(f"{running[0].title} is under way.", "See the work", "Activity")
    name = SCENARIO.current(workspace, known)
    if name is not None:
        return _of_scenario(workspace, name)
    bare = next((entry.source for entry in entries if entry.profile is None), None)
    if bare is not None:
        text = f"{bare} is traced but not profiled, and a plan needs its figures."
        return NextStep(text, "Profile it", "Profile", bare)
    if entries:
        return NextStep("The models have figures. Choose what to serve on which GPUs.", "Plan them", "Plan")
    return None


def _of_scenario(workspace: Workspace, name: str) -> NextStep:
    request, plan = read(workspace, "plan_request", name), read(workspace, "plan", name)
    if plan is None:
        return NextStep(f"{name} has not been planned yet.", "Plan it", "Plan", name)
    if request is not None and not named_results.plan_is_current(request, plan):
        return NextStep(f"{name} was changed since it was planned.", "Plan it again", "Plan", name)
    verdict = verdict_of(request, plan)
    if verdict.level == "red" or plan.status not in SOLVED:
        text = f"{name} does not meet what you asked for."
        return NextStep(text, "See what stands in the way", "Plan", name)
    if verdict.late:
        return NextStep(f"{name} may exceed its limits under load.", "See which", "Plan", name)
    text = f"{name} is planned: its files cut the GPUs and start the models."
    return NextStep(text, "Deploy it", "Deploy", name)
