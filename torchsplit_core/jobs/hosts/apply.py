"""Applies a stored plan to this host's GPUs as a job: the same steps, journal and lock as the command apply."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from torchsplit_core.files import read_text, write_text
from torchsplit_core.jobs.job_kinds import ApplyParameters
from torchsplit_core.values import InputFault, Progress

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def apply_job(workspace: Workspace, parameters: ApplyParameters, progress: Progress) -> dict[str, Any]:
    """Bring this host to the stored plan; a change to it that was cut off is finished first.

    Raises InputFault where the plan is another one by now, and as `apply_change` does.
    """
    from torchsplit_core.apply import (
        ApplySettings,
        HostChange,
        apply_change,
        default_folder,
        finish_change,
        journal_path,
        this_host,
        with_host_facts,
    )
    from torchsplit_core.hardware import NvmlFault, open_nvml
    from torchsplit_core.transition import ChangeTimes, plan_transition

    plan = workspace.get("plan", parameters.request)
    digest = sha256(write_text(plan).encode()).hexdigest()
    if digest != parameters.plan_sha256:
        problem = "is another one than when its change was confirmed"
        raise InputFault("plan", problem, "Look at the change once more.")
    state = read_text(parameters.state, origin="state", expected="torchsplit.host_state")[1]
    request = workspace.get("plan_request", parameters.request) if parameters.has_request else None
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        progress(0.5, line)

    try:
        with open_nvml() as nvml:
            host = this_host(state, parameters.host, None, nvml)
            path = journal_path(default_folder(), host)
            journal = finish_change(nvml, host, digest, path, ApplySettings(), report)
            if journal is None:
                state = with_host_facts(state, host, nvml)
                outcome = plan_transition(
                    plan, state, request=request, prefer_loss=parameters.prefer_loss,
                    evict_foreign=parameters.evict_foreign, times=ChangeTimes(start_s=parameters.start_s),
                )  # fmt: skip
                if outcome.status == "infeasible":
                    raise InputFault("plan", f"cannot be reached: {outcome.message}", "Nothing was changed.")
                change = HostChange.of(outcome, state, host, digest)
                journal = apply_change(nvml, change, path, ApplySettings(), report)
    except NvmlFault as fault:
        raise InputFault("this host", fault.words, "Apply the plan on the host of the GPUs.") from fault
    return {
        "host": host, "plan_sha256": digest, "journal": str(path), "changed": journal is not None, "lines": lines,
    }  # fmt: skip
