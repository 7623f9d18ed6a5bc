"""Named results of a workspace: their names, free names, copies, and whether an outcome answers its request.

A scenario is a plan request and its plan under one name, a placement its request, outcome and curve; a model's cuts are
stored under its name and their largest number of stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

PRICES = "prices"
"""The kind and the name of a workspace's one table of prices."""

SCENARIO_KINDS = ("plan_request", "plan", "day", "day_replay", "measurement")
PLACEMENT_KINDS = ("placement_request", "placement", "placement_frontier")
TRAINING_KINDS = ("strategy_request", "strategy")
"""The kinds of results that share a name."""
Request = PlanRequest | PlacementRequest | StrategyRequest
Outcome = PlanOutcome | PlacementOutcome | PlacementFrontier | StrategyOutcome


def evaluation_name(*, quick: bool) -> str:
    """The name of an evaluation: there is one quick and one whole."""
    return "quick" if quick else "whole"


def names(workspace: Workspace, *kinds: str) -> tuple[str, ...]:
    """The names of results of these kinds: those of the first kind, newest first, then the others' own."""
    return names_in(workspace.artifacts(kinds[0] if len(kinds) == 1 else None), *kinds)


def names_in(artifacts: Sequence[Artifact], *kinds: str) -> tuple[str, ...]:
    """`names` of listed artifacts."""
    return tuple(dict.fromkeys(item.name for kind in kinds for item in artifacts if item.kind == kind))


def exists(workspace: Workspace, kind: str, name: str) -> bool:
    """Whether there is a result of this kind and name."""
    return workspace.find(kind, name) is not None


def sha256_of(workspace: Workspace, kind: str, name: str) -> str:
    """The SHA-256 of (kind, name); empty without one."""
    artifact = workspace.find(kind, name)
    return artifact.sha256 if artifact else ""


def free_name(workspace: Workspace, kinds: tuple[str, ...], wanted: str) -> str:
    """The name, or the name with the first number that no result of these kinds has."""
    return first_free(wanted, names(workspace, *kinds))


def copy(workspace: Workspace, kinds: tuple[str, ...], name: str, new: str) -> None:
    """Store the results of these kinds under another name too. Raises InputFault for an invalid name."""
    for kind in kinds:
        if exists(workspace, kind, name):
            workspace.put_bytes(kind, new, workspace.get_bytes(kind, name))


def remove(workspace: Workspace, kinds: tuple[str, ...], name: str) -> None:
    """Remove the results of these kinds with this name."""
    for kind in kinds:
        workspace.remove(kind, name)


def store_outcome(workspace: Workspace, name: str, request: Request, outcome: Outcome) -> None:
    """Store an outcome of the request; does nothing if the stored request was edited meanwhile.

    A plan and its request become a version of their scenario.
    """
    row = _OUTCOME_KINDS[type(outcome)]
    sha256 = sha256_of(workspace, row.request_kind, name)
    if not sha256 or not _is_stored(workspace.get(row.request_kind, name), request):
        return
    workspace.put(row.kind, name, outcome)
    if row.setting:
        workspace.set_setting(row.setting.format(name), sha256)
    if isinstance(outcome, PlanOutcome):
        from torchsplit_core.workspace.versions import VersionStore

        VersionStore(workspace, name).save("")


def _is_stored(stored: Request, request: Request) -> bool:
    """Whether a request is the stored one; a plan request may have the engines of its LLMs by now."""
    if isinstance(stored, PlanRequest) and isinstance(request, PlanRequest):
        from torchsplit_core.planning.request.hash import request_hash

        return request_hash(stored) == request_hash(request)
    return stored == request


def is_current(workspace: Workspace, name: str, request: Request, outcome: Outcome) -> bool:
    """Whether the stored outcome answers the stored request, not an earlier state of it."""
    row = _OUTCOME_KINDS[type(outcome)]
    answered = workspace.setting(row.setting.format(name)) if row.setting else ""
    if answered:
        return bool(answered == sha256_of(workspace, row.request_kind, name))
    return row.answers(request, outcome)


def plan_is_current(request: PlanRequest, outcome: PlanOutcome) -> bool:
    """Whether the plan answers this request, not an earlier state of it."""
    from torchsplit_core.planning.request.hash import request_hash

    return outcome.request_sha256 == request_hash(request)


def _keeps_rules(request: PlacementRequest, outcome: PlacementOutcome) -> bool:
    from torchsplit_core.placement import violations

    return not any(violations(request, outcome))


def _frontier_keeps_rules(request: PlacementRequest, outcome: PlacementFrontier) -> bool:
    from torchsplit_core.placement.frontier import frontier_violations

    return not any(frontier_violations(request, outcome))


@dataclass(frozen=True, slots=True)
class _OutcomeKind:
    """A kind of outcome, the kind of its request, and how to identify that request.

    `setting` holds the SHA-256 of the request answered. Without it (a plan names its request, an archive has no
    settings) `answers` compares the two.
    """

    kind: str
    request_kind: str
    setting: str
    answers: Callable[[Any, Any], bool]


_OUTCOME_KINDS: Mapping[type, _OutcomeKind] = {
    PlanOutcome: _OutcomeKind("plan", "plan_request", "", plan_is_current),
    PlacementOutcome: _OutcomeKind("placement", "placement_request", "placement {} answers", _keeps_rules),
    PlacementFrontier: _OutcomeKind(
        "placement_frontier", "placement_request", "placement curve {} answers", _frontier_keeps_rules
    ),
    # A strategy has no field that could contradict its request.
    StrategyOutcome: _OutcomeKind("strategy", "strategy_request", "strategy {} answers", lambda *_: True),
}


def partition_name(model: str, stages: int) -> str:
    """The name of a model's stored cuts into at most so many parts."""
    return f"{model} in {stages}"


def partition_names(workspace: Workspace, model: str) -> tuple[str, ...]:
    """The names of a model's stored cuts, fewest parts first."""
    return tuple(item.name for item in cuts_of(workspace.artifacts("partition"), model).values())


def cuts_of(stored: Iterable[Artifact], model: str) -> dict[int, Artifact]:
    """A model's cuts among stored partitions by their largest number of stages, fewest first."""
    pattern = re.compile(re.escape(model) + r" in (\d+)")
    by_stages = {int(match[1]): item for item in stored if (match := pattern.fullmatch(item.name))}
    return dict(sorted(by_stages.items()))
