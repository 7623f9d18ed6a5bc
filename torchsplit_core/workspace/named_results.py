"""Named results of a workspace: which there are, a free name, copies, and whether an outcome answers its request.

A scenario is a plan request and its plan under one name, a placement its request, outcome and curve; the cuts of
a model stand under its name and their largest number of stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchsplit_core.values import (
    PlacementFrontier,
    PlacementOutcome,
    PlacementRequest,
    PlanOutcome,
    PlanRequest,
)
from torchsplit_core.values.names import free_name as first_free
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.workspace.store import Artifact, Workspace

SCENARIO_KINDS = ("plan_request", "plan", "measurement")
PLACEMENT_KINDS = ("placement_request", "placement", "placement_frontier")
TRAINING_KINDS = ("strategy_request", "strategy")
"""The kinds of results that share a name."""
_ANSWERED_SETTINGS = {"placement": "placement {} answers", "placement_frontier": "placement curve {} answers",
          "strategy": "strategy {} answers"}  # fmt: skip
"""The settings that hold the SHA-256 of the request which the result of that kind and name answers."""


def evaluation_name(*, quick: bool) -> str:
    """Under which an evaluation stands: there is one of each kind."""
    return "quick" if quick else "whole"


def names(workspace: Workspace, *kinds: str) -> tuple[str, ...]:
    """The names of these kinds of results: those of the first kind, newest first, then the others' own."""
    return names_in(workspace.artifacts(kinds[0] if len(kinds) == 1 else None), *kinds)


def names_in(artifacts: Sequence[Artifact], *kinds: str) -> tuple[str, ...]:
    """`names`, of what the caller has listed."""
    return tuple(dict.fromkeys(item.name for kind in kinds for item in artifacts if item.kind == kind))


def exists(workspace: Workspace, kind: str, name: str) -> bool:
    """Whether there is a result under (kind, name)."""
    return workspace.find(kind, name) is not None


def sha256_of(workspace: Workspace, kind: str, name: str) -> str:
    """The SHA-256 of what stands under (kind, name); empty where nothing does."""
    artifact = workspace.find(kind, name)
    return artifact.sha256 if artifact else ""


def free_name(workspace: Workspace, kinds: tuple[str, ...], wanted: str) -> str:
    """The name, or the name with the first number that no result of these kinds has."""
    return first_free(wanted, names(workspace, *kinds))


def copy(workspace: Workspace, kinds: tuple[str, ...], name: str, new: str) -> None:
    """Store the results of these kinds under another name too. Raises InputFault for a name that will not do."""
    for kind in kinds:
        if exists(workspace, kind, name):
            workspace.put_bytes(kind, new, workspace.get_bytes(kind, name))


def remove(workspace: Workspace, kinds: tuple[str, ...], name: str) -> None:
    """Forget the results of these kinds under a name."""
    for kind in kinds:
        workspace.remove(kind, name)


def store_outcome(
    workspace: Workspace,
    name: str,
    request: PlanRequest | PlacementRequest | StrategyRequest,
    outcome: PlanOutcome | PlacementOutcome | PlacementFrontier | StrategyOutcome,
) -> None:
    """Store an outcome beside the request that it answers.

    Where the request was edited meanwhile nothing is stored: the edit asks for an answer of its own. A plan and its
    request become a version of their scenario.
    """
    request_kind = _request_kind(request)
    sha256 = sha256_of(workspace, request_kind, name)
    if not sha256 or workspace.get(request_kind, name) != request:
        return
    kind = _outcome_kind(outcome)
    workspace.put(kind, name, outcome)
    if kind == "plan":
        from torchsplit_core.workspace.versions import VersionStore

        VersionStore(workspace, name).save("")
    if kind in _ANSWERED_SETTINGS:
        workspace.set_setting(_ANSWERED_SETTINGS[kind].format(name), sha256)


def _request_kind(request: PlanRequest | PlacementRequest | StrategyRequest) -> str:
    if isinstance(request, StrategyRequest):
        return "strategy_request"
    return "plan_request" if isinstance(request, PlanRequest) else "placement_request"


def strategy_is_current(workspace: Workspace, name: str) -> bool:
    """Whether the strategy under a name is the answer to the request there.

    One that came in an archive, which has no settings, counts as that: nothing in it says otherwise.
    """
    request_sha256 = workspace.setting(_ANSWERED_SETTINGS["strategy"].format(name))
    return not request_sha256 or request_sha256 == sha256_of(workspace, "strategy_request", name)


def plan_is_current(request: PlanRequest, outcome: PlanOutcome) -> bool:
    """Whether the plan is the answer to this request, not to an earlier state of it."""
    from torchsplit_core.planning.request.hash import request_hash

    return outcome.request_sha256 == request_hash(request)


def placement_is_current(
    workspace: Workspace, name: str, request: PlacementRequest, outcome: PlacementOutcome | PlacementFrontier
) -> bool:
    """Whether what is stored under a name is the answer to the request there, not to an earlier state of it."""
    request_sha256 = workspace.setting(_ANSWERED_SETTINGS[_outcome_kind(outcome)].format(name))
    if request_sha256:
        return bool(request_sha256 == sha256_of(workspace, "placement_request", name))
    # A workspace that came as an archive has no settings: then the outcome is checked against the request.
    from torchsplit_core.placement import violations
    from torchsplit_core.placement.frontier import frontier_violations

    if isinstance(outcome, PlacementFrontier):
        return not any(frontier_violations(request, outcome))
    return not any(violations(request, outcome))


def _outcome_kind(outcome: PlanOutcome | PlacementOutcome | PlacementFrontier | StrategyOutcome) -> str:
    if isinstance(outcome, PlanOutcome):
        return "plan"
    if isinstance(outcome, StrategyOutcome):
        return "strategy"
    return "placement" if isinstance(outcome, PlacementOutcome) else "placement_frontier"


def partition_name(model: str, stages: int) -> str:
    """The name under which a model's cuts into at most so many parts are stored."""
    return f"{model} in {stages}"


def partition_names(workspace: Workspace, model: str) -> tuple[str, ...]:
    """The names of a model's stored cuts, fewest parts first."""
    return tuple(item.name for item in cuts_of(workspace.artifacts("partition"), model).values())


def cuts_of(stored: Iterable[Artifact], model: str) -> dict[int, Artifact]:
    """Among stored partitions a model's cuts by their largest number of stages, fewest first."""
    pattern = re.compile(re.escape(model) + r" in (\d+)")
    by_stages = {int(match[1]): item for item in stored if (match := pattern.fullmatch(item.name))}
    return dict(sorted(by_stages.items()))
