"""The files of a day's schedule: what each change is, when it begins, and its files. Nothing applies itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, fsum

from torchsplit_core.day_plans.day_figures import lost_in
from torchsplit_core.day_plans.least_change import used_gpus
from torchsplit_core.day_plans.scheduling.cron_workflows import FILE as CRON_WORKFLOWS
from torchsplit_core.day_plans.scheduling.cron_workflows import cron_workflows
from torchsplit_core.day_plans.scheduling.scheduled_change import ScheduledChange
from torchsplit_core.day_plans.summary import day_verdict
from torchsplit_core.day_plans.window_requests import request_of_window, windows_of
from torchsplit_core.deployment import DeploymentFile, deploy
from torchsplit_core.deployment.deploy import LAYOUT_FORMATS
from torchsplit_core.deployment.safe_text import dns_labels, markdown, one_line
from torchsplit_core.files import write_text
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.transition import transition_table
from torchsplit_core.values import DayOutcome, InputFault, PlanOutcome, PlanRequest

DAY_MINUTES = 24 * 60
_HEAD = """\
# The changes of a day, in UTC, as lines for cron. Every line is a comment: nothing here applies itself. Before you
# enable one, set HOST, look at its transition, and try it by hand: without --yes apply changes nothing.
# CRON_TZ=UTC
"""


def scheduled_changes(request: PlanRequest, outcome: DayOutcome) -> tuple[ScheduledChange, ...]:
    """The changes that touch a GPU, in the order of the windows; one begun ahead ends as its window begins.

    Raises InputFault for a day of another request, and for one with a window without a plan.
    """
    if outcome.request_sha256 not in (None, request_hash(request)):
        raise InputFault(
            "--request", "is not the request that this day answers", "Pass the day's own request."
        )
    missing = [window.name for window in outcome.windows if not window.plan.gpus]
    if missing:
        raise InputFault(
            "the day", f"has no plan for {', '.join(missing)}", "Plan a day that has one for each."
        )
    windows, folders = windows_of(request), _folders(request)
    changes = []
    for number, planned in enumerate(outcome.windows):
        after = (number + 1) % len(windows)
        change = planned.transition
        if change is None or not change.touched_gpus:
            continue
        begin = windows[after].minutes[0]
        if planned.ahead:
            begin -= ceil(fsum(step.seconds or 0.0 for step in change.steps) / 60)
        changes.append(
            ScheduledChange(planned.name, windows[after].name, begin % DAY_MINUTES, change, folders[after])
        )
    return tuple(changes)


def schedule_files(
    request: PlanRequest, outcome: DayOutcome, formats: Sequence[str] | None = None
) -> tuple[DeploymentFile, ...]:
    """The files of a schedule: `SCHEDULE.md`; `schedule.cron`, and the same as CronWorkflows where there are changes;
    for each window its plan, its files that cut GPUs, and the transition to it.

    `formats`: of LAYOUT_FORMATS, default all. Raises InputFault as `scheduled_changes` and `deploy` do.
    """
    chosen = tuple(formats or LAYOUT_FORMATS)
    others = [name for name in chosen if name not in LAYOUT_FORMATS]
    if others:
        raise InputFault(
            "--format",
            f"{others[0]} runs the models of one plan, and this is a day of several",
            f"Write {' and '.join(LAYOUT_FORMATS)} for a day, or deploy windows/NAME/plan.json by itself.",
        )
    changes = scheduled_changes(request, outcome)
    files = [
        DeploymentFile("SCHEDULE.md", _readme(request, outcome, changes)),
        DeploymentFile("schedule.cron", _HEAD + "".join(map(_cron_line, changes))),
    ]
    if changes:
        files.append(DeploymentFile(CRON_WORKFLOWS, cron_workflows(changes)))
    folders = _folders(request)
    before: PlanOutcome | None = None
    for number, planned in enumerate(outcome.windows):
        folder = folders[number]
        asked = request_of_window(request, planned.name, before)
        files += [
            DeploymentFile(f"{folder}/plan.json", write_text(planned.plan)),
            DeploymentFile(f"{folder}/plan_request.json", write_text(asked)),
        ]
        if any(gpu.used for gpu in planned.plan.gpus):
            files += [
                DeploymentFile(f"{folder}/{file.name}", file.text, file.executable)
                for file in deploy(planned.plan, chosen, asked)
            ]
        before = planned.plan
    for change in changes:
        text = "\n".join(transition_table(change.transition)) + "\n"
        files += [
            DeploymentFile(f"{change.folder}/transition.json", write_text(change.transition)),
            DeploymentFile(f"{change.folder}/transition.txt", text),
        ]
    return tuple(files)


def _folders(request: PlanRequest) -> Mapping[int, str]:
    """The folder of each window, by its number."""
    labels = dns_labels({number: (window.name,) for number, window in enumerate(windows_of(request))})
    return {number: f"windows/{label}" for number, label in labels.items()}


def _cron_line(change: ScheduledChange) -> str:
    touched = change.transition.touched_gpus
    gpus = "1 GPU changes" if touched == 1 else f"{touched} GPUs change"
    return (
        f"# {one_line(change.before)} to {one_line(change.after)}: {gpus}\n"
        f"# {change.cron} torchsplit apply {change.folder}/plan.json --yes HOST\n"
    )


def _readme(request: PlanRequest, outcome: DayOutcome, changes: Sequence[ScheduledChange]) -> str:
    rows = [
        (
            markdown(window.name), f"{window.start}–{window.end}", f"{window.hours:g}", str(used_gpus(planned.plan)),
        )
        for window, planned in zip(windows_of(request), outcome.windows, strict=True)
    ]  # fmt: skip
    moves = [
        (
            change.clock, markdown(f"{change.before} → {change.after}"), str(change.transition.touched_gpus),
            f"{lost_in(change.transition):.4g}", f"`{change.folder}/transition.txt`",
        )
        for change in changes
    ]  # fmt: skip
    verdict = day_verdict(outcome)
    parts = [
        "# A day's schedule",
        f"{markdown(verdict[0].upper() + verdict[1:])}. **Nothing here applies itself, and nothing was tested on "
        "hardware**: read each transition, and try it by hand first.",
        "## Windows, UTC",
        _table(("window", "from–to", "hours", "GPUs used"), rows),
        "## Changes, UTC",
        _table(("begins at", "change", "GPUs that change", "requests lost, estimated", "steps"), moves)
        if moves
        else "None: every window has the same slices and tenants.",
        f"`schedule.cron` has a line for each, every one a comment; `{CRON_WORKFLOWS}` has an Argo CronWorkflow for "
        "each, suspended, not tried on a cluster, which prints the transition, rehearses it and waits for you before "
        "it applies.",
        "A clock that changes by the season moves windows by an hour: cron lines are in UTC, and so is this table. "
        "Demand that leaves what was planned for is yours to watch: each plan holds the demand in its "
        "`plan_request.json`.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows))
