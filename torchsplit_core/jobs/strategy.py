"""Jobs that search training strategies and study the sensitivity of the best one."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.jobs.job_kinds import RequestParameters, RequestVersionParameters
from torchsplit_core.training.monitor.measured_steps import file_identity, identity_of
from torchsplit_core.training.stored_runs import trained_step
from torchsplit_core.values import InputFault, Profile, Progress, quoted
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest
from torchsplit_core.workspace.named_results import exists, sha256_of, store_outcome

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.workspace.store import Workspace


def strategy_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Search strategies for the stored request; store the outcome under its name, with the request it answers.

    A traced model comes from the workspace, with its profile; its code is not executed.
    """
    name = parameters.request
    request: StrategyRequest = workspace.get("strategy_request", name)
    outcome = _solve(workspace, request, progress)
    store_outcome(workspace, name, request, outcome)
    return {"strategy": name, "status": outcome.status}


def study_job(
    workspace: Workspace, parameters: RequestVersionParameters, progress: Progress
) -> dict[str, Any]:
    """Cost of changing each choice, of fewer nodes and of less memory, as JSON values.

    Raises InputFault if the stored request has changed since the job was started, or if nothing fits.
    """
    from torchsplit_core.strategy.sensitivity import sensitivity

    name = parameters.request
    if sha256_of(workspace, "strategy_request", name) != parameters.sha256:
        raise InputFault(
            "study", f"the request {quoted(name)} has changed since it was asked for", "Ask again."
        )
    request: StrategyRequest = workspace.get("strategy_request", name)
    graph, profile = _model(workspace, request)

    identity = _identity(workspace, request)

    def solve(changed: StrategyRequest) -> StrategyOutcome:
        return workflow.strategy(changed, graph=graph, profile=profile, track=False, identity=identity)

    first = solve(request)
    if not first.candidates:
        raise InputFault("study", f"no strategy fits the request {quoted(name)}", "Change the request.")
    effects = sensitivity(request, first.candidates[0], solve, progress=progress)
    return asdict(effects)


def _solve(workspace: Workspace, request: StrategyRequest, progress: Progress) -> StrategyOutcome:
    graph, profile = _model(workspace, request)
    identity = _identity(workspace, request)
    return workflow.strategy(
        request, graph=graph, profile=profile, track=False, identity=identity, progress=progress
    )


def _identity(workspace: Workspace, request: StrategyRequest) -> str | None:
    """By which finished runs of a traced model are known; None where its file is not in the workspace."""
    if not isinstance(request.model, SourceSizes):
        return None
    source = request.model.source
    with contextlib.suppress(InputFault):  # of a run that is gone
        step = trained_step(workspace, source)
        source = source if step is None else step.built_by
    file, _, name = source.rpartition(":")
    if not source.startswith("sample:") and exists(workspace, "upload", file):
        return file_identity(workspace.get_bytes("upload", file), name)
    return identity_of(source, trust=True)


def _model(workspace: Workspace, request: StrategyRequest) -> tuple[TorchGraph | None, Profile | None]:
    """The graph and the profile of a traced model. Raises InputFault if the workspace lacks it."""
    if not isinstance(request.model, SourceSizes):
        return None, None
    source = request.model.source
    if not exists(workspace, "graph", source):
        raise InputFault(
            "model.source",
            f"{quoted(source)} is not traced in this workspace",
            "Trace it on the page Models.",
        )
    profile: Profile | None = None
    if exists(workspace, "profile", source):
        profile = workspace.get("profile", source)
    return workspace.get("graph", source), profile
