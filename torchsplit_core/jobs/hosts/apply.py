"""Applies a stored plan to this host's GPUs as a job: the same steps, journal and lock as the command apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core.files import read_text
from torchsplit_core.jobs.job_kinds import ApplyParameters
from torchsplit_core.values import HostState, InputFault, Progress, Transition

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def apply_job(workspace: Workspace, parameters: ApplyParameters, progress: Progress) -> dict[str, Any]:
    """Bring this host to the stored plan; a change to it that was cut off is finished first.

    Raises InputFault where the plan is another one by now, and as `apply_change` does.
    """
    from torchsplit_core.apply import (
        ApplySettings,
        apply_plan,
        default_folder,
        host_driver,
        plan_digest,
        this_host,
    )
    from torchsplit_core.transition import ChangeTimes, plan_transition

    plan = workspace.get("plan", parameters.request)
    digest = plan_digest(plan)
    if digest != parameters.plan_sha256:
        problem = "is another one than when its change was confirmed"
        raise InputFault("plan", problem, "Look at the change once more.")
    state = read_text(parameters.state, origin="state", expected="torchsplit.host_state")[1]
    request = workspace.get("plan_request", parameters.request) if parameters.has_request else None
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        progress(0.5, line)

    def find_transition(now: HostState) -> Transition:
        return plan_transition(
            plan, now, request=request, prefer_loss=parameters.prefer_loss,
            evict_foreign=parameters.evict_foreign, times=ChangeTimes(start_s=parameters.start_s),
        )  # fmt: skip

    settings = ApplySettings(
        parameters.on_stop or None, parameters.on_start or None, switch_mig_mode=parameters.switch_mig_mode
    )
    with host_driver("Apply the plan on the host of the GPUs.") as nvml:
        host = this_host(state, parameters.host, None, nvml)
        done = apply_plan(nvml, plan, state, host, find_transition, default_folder(), settings, report)
    if done.transition is not None and done.transition.status == "infeasible":
        raise InputFault("plan", f"cannot be reached: {done.transition.message}", "Nothing was changed.")
    return {
        "host": host, "plan_sha256": digest, "journal": str(done.path), "changed": done.journal is not None,
        "lines": lines,
    }  # fmt: skip
