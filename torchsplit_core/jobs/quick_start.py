"""Two quick starts: the measured mix, and sample models measured on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core.jobs.names import ProfileParameters, QuickStartParameters, RequestParameters
from torchsplit_core.jobs.plan import plan_job
from torchsplit_core.jobs.profile import profile_job
from torchsplit_core.planning.request.edit import DEFAULT_DEMAND_RPS
from torchsplit_core.values import FleetEntry, Progress
from torchsplit_core.workspace.named import exists

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


QUICK_START_SAMPLES = ("sample:clip@large", "sample:bert@large", "sample:fastpitch@large", "sample:ocr@large")
"""The models of the second quick start."""


QUICK_START_LATENCY_MS = 200.0
"""And the longest one batch may take: without a limit the planner would take the largest batch for little more."""


def samples_job(workspace: Workspace, parameters: QuickStartParameters, progress: Progress) -> dict[str, Any]:
    """The second quick start: trace and profile the sources here, estimate the fleet, plan. Resumes what is stored."""
    from torchsplit_core.planning.request.build import build_request, model_name

    sources = parameters.sources or QUICK_START_SAMPLES
    fleet = tuple(FleetEntry(type=kind, count=count) for kind, count in parameters.gpus)
    profiles = []
    for number, source in enumerate(sources):

        def part(share: float, text: str, number: int = number, source: str = source) -> None:
            progress(0.9 * (number + share) / len(sources), f"{source.partition(':')[2]}: {text}")

        if exists(workspace, "profile", source):
            part(1.0, "already profiled")
        else:
            profile_job(workspace, ProfileParameters((source,), batch_sizes=(1, 2), point_budget_s=0.5), part)
        profiles.append(workspace.get("profile", source))
    name = parameters.name
    demands = {model_name(found): DEFAULT_DEMAND_RPS for found in profiles}
    limits = dict.fromkeys(demands, QUICK_START_LATENCY_MS)
    request = build_request(profiles, fleet, demands=demands, max_latencies=limits, time_limit_s=20.0)
    workspace.put("plan_request", name, request)
    workspace.set_setting("scenario", name)
    return plan_job(workspace, RequestParameters(name), lambda share, text: progress(0.9 + 0.1 * share, text))


MEASURED_MIX = "Measured A100 mix"
"""The scenario of the first quick start."""


def measured_mix(workspace: Workspace, gpus: int | None = None) -> str:
    """The first quick start: put the measured A100 mix into the workspace as a plan request; its name."""
    from torchsplit_core.profiling.library import library_profiles, mix_request

    name = MEASURED_MIX
    for found in library_profiles():
        workspace.put("profile", found.source, found)
    workspace.put("plan_request", name, mix_request("S3", gpus))
    workspace.set_setting("scenario", name)
    return name
