"""Quick starts: the measured mix, samples profiled for GPUs, and samples planned and served on this host."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from torchsplit_core.jobs.job_kinds import (
    MeasureParameters,
    ProfileParameters,
    QuickStartParameters,
    RequestParameters,
    RunHereParameters,
    TrainOnParameters,
    TrainParameters,
)
from torchsplit_core.jobs.measure import measure_job
from torchsplit_core.jobs.plan import plan_job
from torchsplit_core.jobs.profile import profile_job
from torchsplit_core.planning.request.edit import DEFAULT_DEMAND_RPS
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.training.stored_runs import model_of_step
from torchsplit_core.values import CPU, FleetEntry, Profile, Progress
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob
from torchsplit_core.workspace.named_results import exists

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


QUICK_START_SAMPLES = ("sample:clip@large", "sample:bert@large", "sample:fastpitch@large", "sample:ocr@large")
"""The models of the second quick start."""


QUICK_START_LATENCY_MS = 200.0
"""Latency limit of a batch: without one the planner would choose the largest batches for little more throughput."""


def samples_job(workspace: Workspace, parameters: QuickStartParameters, progress: Progress) -> dict[str, Any]:
    """The second quick start: trace and profile the sources here, estimate the fleet, plan. Reuses stored results."""
    from torchsplit_core.planning.request.build import build_request, model_names

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
    demands = dict.fromkeys(model_names(profiles), DEFAULT_DEMAND_RPS)
    limits = dict.fromkeys(demands, QUICK_START_LATENCY_MS)
    request = build_request(profiles, fleet, demands=demands, max_latencies=limits, time_limit_s=20.0)
    workspace.put("plan_request", name, request)
    workspace.set_setting("scenario", name)
    return plan_job(workspace, RequestParameters(name), lambda share, text: progress(0.9 + 0.1 * share, text))


HERE_SAMPLES = ("sample:bert", "sample:clip", "sample:fastpitch", "sample:ocr")
"""The models of the third quick start."""
MOST_SLICE_CORES = 4
"""Most cores that it divides: more would be idle."""
HERE_BATCHES = (1, 2, 4)
HERE_DEMAND_RPS = 20.0
"""Demand of each model: what one core serves beside three others."""


def slice_cores() -> int:
    """Cores of this host for slices: all but one if there are several; the frontend and the load use that one."""
    return max(1, min(MOST_SLICE_CORES, len(os.sched_getaffinity(0)) - 1))


def here_job(workspace: Workspace, parameters: RunHereParameters, progress: Progress) -> dict[str, Any]:
    """The third quick start: measure on slices of this CPU, plan, serve, load, compare. Reuses stored results.

    The fourth trains the model first and serves its last step.
    """
    if parameters.run is not None:
        source = _train_digits(workspace, parameters.run, lambda share, text: progress(0.4 * share, text))
        if source is None:
            return {"stopped": True}
        rest = replace(parameters, run=None, sources=(source,))
        return here_job(workspace, rest, lambda share, text: progress(0.4 + 0.6 * share, text))
    from torchsplit_core.planning.request.build import build_request, model_names

    sources = parameters.sources or HERE_SAMPLES
    cores, name = slice_cores(), parameters.request
    widths = [f"{count}c" for count in (1, 2) if count <= cores]
    profiles = []
    for number, source in enumerate(sources):

        def part(share: float, text: str, number: int = number, source: str = source) -> None:
            progress(0.5 * (number + share) / len(sources), f"{source.partition(':')[2]}: {text}")

        if not _has_slices(workspace, source, widths):
            device = ",".join(f"cpu:{width}" for width in widths)
            profile_parameters = ProfileParameters((source,), device, HERE_BATCHES, point_budget_s=0.3)
            profile_job(workspace, profile_parameters, part)
        profiles.append(workspace.get("profile", source))
    demands = dict.fromkeys(model_names(profiles), HERE_DEMAND_RPS)
    request = build_request(profiles, (FleetEntry(f"{CPU}-{cores}c"),), demands=demands, time_limit_s=10.0)
    if cores < len(sources):
        # Fewer slices than models: models share slices.
        request = replace(request, sharing="fractional")
    workspace.put("plan_request", name, request)
    workspace.set_setting("scenario", name)
    plan_job(workspace, RequestParameters(name), lambda share, text: progress(0.5 + 0.1 * share, text))
    return measure_job(
        workspace,
        MeasureParameters(name, duration_s=parameters.duration_s),
        lambda share, text: progress(0.6 + 0.4 * share, text),
    )


DIGITS, DIGITS_STEPS = "sample:digits", 330
"""The model of the fourth quick start, and its training steps: 15 epochs in batches of 64."""


def _train_digits(workspace: Workspace, run: str, progress: Progress) -> str | None:
    """Start or resume this run of the sample. Returns its last step as a model source, None if it was stopped."""
    from torchsplit_core.jobs.train import train_job, train_on_job

    path = workspace.runs / run
    last = RunFolder(path).last_step()
    if last is None or last["step"] < DIGITS_STEPS:
        strategy = RunStrategy(ParallelConfig(data=2, micro_batch=32), TrainingJob(64, "fp32", "adamw"))
        options = RunOptions(steps=DIGITS_STEPS, checkpoint_every=110)
        if last is None:
            result = train_job(workspace, TrainParameters(run, DIGITS, strategy, options), progress)
        else:
            result = train_on_job(workspace, TrainOnParameters(run, DIGITS_STEPS), progress)
        if result.get("stopped"):
            return None
    return model_of_step(run, DIGITS_STEPS)


def _has_slices(workspace: Workspace, source: str, widths: list[str]) -> bool:
    """Whether the stored profile has measured points for these CPU slices."""
    if not exists(workspace, "profile", source):
        return False
    stored: Profile = workspace.get("profile", source)
    return {row.profile for row in stored.rows if row.gpu_type == CPU} >= set(widths)


MEASURED_MIX = "Measured A100 mix"
"""The scenario of the first quick start."""


def measured_mix(
    workspace: Workspace, gpus: int | None = None, *, begin: Callable[[str], object] = lambda name: None
) -> str:
    """The first quick start: store the measured A100 mix in the workspace as a plan request. Returns its name.

    `begin` is called with the name as soon as it can be planned; the profiles are stored meanwhile.
    """
    from torchsplit_core.profiling.library import mix_request

    name = MEASURED_MIX
    mix = mix_request("S3", gpus)
    models = (replace(model, source=f"library:{model.name}") for model in mix.models)
    workspace.put("plan_request", name, replace(mix, models=tuple(models)))
    workspace.set_setting("scenario", name)
    begin(name)
    workspace.put_all("profile", library_files())
    return name


CHAT_AND_VISION = "Chat and vision on four H100"
"""The scenario of the quick start with an LLM, from `examples/llm/chat_and_vision.json`."""


def chat_and_vision(workspace: Workspace) -> str:
    """Store the request of a chat model beside vision models on four H100. Returns its name."""
    from torchsplit_core import bundle
    from torchsplit_core.files import read_file

    path = bundle.root() / "examples" / "llm" / "chat_and_vision.json"
    _, request = read_file(path, expected="torchsplit.plan_request")
    workspace.put("plan_request", CHAT_AND_VISION, request)
    workspace.set_setting("scenario", CHAT_AND_VISION)
    return CHAT_AND_VISION


@cache
def library_files() -> tuple[tuple[str, bytes], ...]:
    """The source and file content of each library profile; cached, for encoding them is too slow for a page."""
    from torchsplit_core.files import write_text
    from torchsplit_core.profiling.library import library_profiles

    return tuple((profile.source, write_text(profile).encode()) for profile in library_profiles())
