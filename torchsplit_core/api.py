"""The steps from a model to deployment files as Python functions: trace, profile, request, plan, simulate, deploy.

    from torchsplit_core import deploy, plan, profile, request, simulate

    bert = profile("sample:bert")
    asked = request(bert, gpus="1xA100-80GB", demand={"bert": 100})
    planned = plan(asked)
    load = simulate(planned)
    deploy(planned, "deployment")

Results show themselves in notebooks; `save` writes a contract file, which every command reads. All functions raise
InputFault for faults of the input, with the place and a remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.files import read_file, write_file
from torchsplit_core.latency_slo.verdict import PlanVerdict, plan_verdict
from torchsplit_core.pictures import html
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.request.fleet_text import parse_fleet
from torchsplit_core.planning.request.validate import check_minima, validate
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    Objective,
    ObjectiveKind,
    PartitionOutcome,
    PlanOutcome,
    PlanRequest,
    Profile,
    Progress,
    SimulationOutcome,
    SimulationRequest,
    ignore_progress,
)

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.profiling.points import MeasurementSettings

__all__ = ["Load", "Plan", "ProfiledModel", "deploy", "plan", "profile", "request", "simulate", "trace"]

FilePath = str | Path


@dataclass(frozen=True, repr=False)
class ProfiledModel:
    """A model's graph, and its profile on each slice."""

    graph: TorchGraph
    profile: Profile

    def __repr__(self) -> str:
        return f"<{self.profile.source}: {html.profile_words(self.profile)}>"

    def _repr_html_(self) -> str:
        return html.profile_html(self.profile)

    def save(self, path: FilePath) -> None:
        """Write the profile."""
        write_file(self.profile, str(path))


@dataclass(frozen=True, repr=False)
class Plan:
    """A plan with the request that it answers. `outcome` is verified and has a bound."""

    request: PlanRequest
    outcome: PlanOutcome

    @cached_property
    def verdict(self) -> PlanVerdict:
        """Whether demands, minima and response-time limits hold; simulates queues, in a fraction of a second."""
        return plan_verdict(self.request, self.outcome)

    def __repr__(self) -> str:
        return f"<{self.outcome.status}; {self.verdict.level}: {self.verdict.sentence}>"

    def _repr_html_(self) -> str:
        return html.plan_html(self.request, self.outcome, self.verdict.level, self.verdict.sentence)

    def save(self, path: FilePath) -> None:
        """Write the outcome, without the request (`torchsplit_core.files.write_file` writes that)."""
        write_file(self.outcome, str(path))


@dataclass(frozen=True, repr=False)
class Load:
    """A plan under load: the simulation's request and outcome."""

    request: SimulationRequest
    outcome: SimulationOutcome

    def __repr__(self) -> str:
        return f"<{html.load_words(self.outcome)}>"

    def _repr_html_(self) -> str:
        return html.load_html(self.outcome)

    def save(self, path: FilePath) -> None:
        """Write the outcome."""
        write_file(self.outcome, str(path))


def trace(source: str, *, trust: bool = False) -> TorchGraph:
    """The dataflow graph of `sample:NAME`, `FILE.pt2` (read, never executed) or `FILE.py:NAME` (needs `trust`)."""
    return workflow.trace(source, trust=trust)


def profile(
    source: str,
    *,
    device: str = "auto",
    batch_sizes: Sequence[int] | None = None,
    gpu_types: Sequence[str] | None = None,
    trust: bool = False,
    settings: MeasurementSettings | None = None,
    progress: Progress = ignore_progress,
) -> ProfiledModel:
    """Measure a model on this host and estimate it on the slices of `gpu_types` (default: the whole catalogue).

    `device` as in `torchsplit profile --device`. A `.pt2` is executed only with `trust`; otherwise all is estimated.
    """
    graph, measured = workflow.profile(
        source, device=device, batch_sizes=batch_sizes, gpu_types=gpu_types, trust=trust, settings=settings,
        progress=progress,
    )  # fmt: skip
    return ProfiledModel(graph, measured)


def request(
    *profiles: ProfiledModel | Profile | FilePath,
    gpus: str | Sequence[FleetEntry],
    demand: Mapping[str, float] | None = None,
    min_throughput: Mapping[str, float] | None = None,
    max_latency: Mapping[str, float] | None = None,
    max_response: Mapping[str, float] | None = None,
    weight: Mapping[str, float] | None = None,
    candidates: Sequence[PartitionOutcome | FilePath] = (),
    objective: ObjectiveKind | Objective = "leximin",
    sharing: str = "exclusive",
    time_limit_s: float = 60.0,
) -> PlanRequest:
    """A plan request for profiles on a fleet (`"2xA100-80GB,1xA30-24GB"`, as in `torchsplit request --gpus`).

    By model name (the profile's own, else a short form of its source): `demand` and `min_throughput` in requests/s,
    `max_latency` of a batch alone and `max_response` (95th percentile, waits included) in ms. `candidates` are
    partitions; each of their cuts becomes a variant.
    """
    read_profiles = [_profile_of(source) for source in profiles]
    if not read_profiles:
        raise InputFault("request()", "has no profile", "Give at least one.")
    built = build_request(
        read_profiles,
        parse_fleet(gpus) if isinstance(gpus, str) else gpus,
        candidates=[_read(source, PartitionOutcome, "torchsplit.partition") for source in candidates],
        demands=demand,
        min_throughputs=min_throughput,
        max_latencies=max_latency,
        max_responses=max_response,
        weights=weight,
        objective=Objective(objective) if isinstance(objective, str) else objective,
        sharing=sharing,
        time_limit_s=time_limit_s,
    )
    validate(built)
    check_minima(built)
    return built


def plan(
    asked: PlanRequest | FilePath,
    *,
    explain: bool = False,
    time_limit_s: float | None = None,
    progress: Progress = ignore_progress,
) -> Plan:
    """The best plan for a request or the file of one. `explain` adds the binding limits of each model and remedies.

    An infeasible request is not a fault: `outcome.status` says so, and `outcome.conflicts` says why.
    """
    plan_request = _read(asked, PlanRequest, "torchsplit.plan_request")
    if time_limit_s is not None:
        plan_request = replace(plan_request, solver=replace(plan_request.solver, time_limit_s=time_limit_s))
    plan_request = workflow.with_engine_points(plan_request)
    return Plan(plan_request, workflow.plan(plan_request, explain=explain, progress=progress))


def simulate(
    planned: Plan, *, load: float = 1.0, requests: int | None = None, progress: Progress = ignore_progress
) -> Load:
    """Simulate response times, waits included, at `load` times the demands; `requests` per model and replication."""
    simulation = workflow.under_load(workflow.simulation_request(planned.outcome, planned.request), load)
    if requests is not None:
        simulation = replace(simulation, requests_per_model=requests)
    return Load(simulation, workflow.simulate(simulation, progress))


def deploy(
    planned: Plan, folder: FilePath, *, formats: Sequence[str] | None = None, **options: Any
) -> tuple[Path, ...]:
    """Write a plan's files, by default in every format that fits it; `options` as in `workflow.deploy`."""
    return workflow.deploy(planned.outcome, Path(folder), formats, request=planned.request, **options)


def _profile_of(source: ProfiledModel | Profile | FilePath) -> Profile:
    return (
        source.profile if isinstance(source, ProfiledModel) else _read(source, Profile, "torchsplit.profile")
    )


def _read(source: Any, kind: type[Any], format_name: str) -> Any:
    """The given value, or the value of the given file."""
    if isinstance(source, str | Path):
        return read_file(source, expected=format_name)[1]
    if not isinstance(source, kind):
        problem = f"is {type(source).__name__}, neither {kind.__name__} nor the path of a file"
        raise InputFault(format_name, problem, f"Give a {kind.__name__}, or the path of a file of one.")
    return source
