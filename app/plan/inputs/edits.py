"""What the editors of a plan request hold, and the request with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from app.plan.inputs import request_tables
from app.plan.summary import PlanAt, Sharing
from torchsplit_core.planning.request import edit
from torchsplit_core.values import ObjectiveKind, PlanRequest, Profile

Speeds = tuple[float | None, float | None]
"""GB/s of the link and of the network, None where they are not given."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is best, and with which means: all that a request says beside its fleet, its models and its pairs."""

    kind: ObjectiveKind
    sharing: Sharing
    limit_s: float
    plan_at: PlanAt
    most_tenants: int | None
    memory_penalty: float | None
    separation_weight: float

    @classmethod
    def of(cls, request: PlanRequest) -> Goal:
        """That of a request, its time as the page offers it."""
        goal = request.objective
        return cls(
            goal.kind, request.sharing, limit_s(request), request.solver.plan_at, request.max_tenants_per_slice,
            goal.memory_violation_penalty, goal.separation_weight,
        )  # fmt: skip

    def applied(self, request: PlanRequest) -> PlanRequest:
        """The request with it."""
        goal = replace(
            request.objective,
            kind=self.kind,
            memory_violation_penalty=self.memory_penalty,
            separation_weight=self.separation_weight,
        )
        return replace(
            request,
            objective=goal,
            sharing=self.sharing,
            max_tenants_per_slice=self.most_tenants,
            solver=replace(request.solver, time_limit_s=self.limit_s, plan_at=self.plan_at),
        )


@dataclass(frozen=True, slots=True)
class Edits:
    """What the editors hold: a table or a choice each, and the profiles by the model names a request uses."""

    fleet: pd.DataFrame
    details: pd.DataFrame
    speeds: Speeds
    models: pd.DataFrame
    added: list[str]
    profiles: Mapping[str, Profile]
    allowed: Mapping[str, Sequence[str]]
    pairs: pd.DataFrame
    goal: Goal

    def waiting(self, request: PlanRequest) -> tuple[str, ...]:
        """The parts that differ from the request."""
        differs = {
            "fleet": not self.fleet.equals(request_tables.fleet_table(request))
            or not self.details.equals(request_tables.details_table(request)),
            "links": self.speeds != (request.link_gb_per_s, request.network_gb_per_s),
            "models": bool(self.added)
            or not self.models.equals(request_tables.models_table(request))
            or edit.with_allowed(request, self.allowed) != request,
            "pairs": not self.pairs.equals(request_tables.pairs_table(request)),
            "objective": self.goal != Goal.of(request),
        }
        return tuple(what for what, is_so in differs.items() if is_so)

    def applied(self, request: PlanRequest) -> PlanRequest:
        """The request with all of them. Raises InputFault for a row that makes no sense."""
        # Untouched it stays as it is: the page offers fewer times of search than a request may have.
        edited = request if self.goal == Goal.of(request) else self.goal.applied(request)
        edited = replace(edited, link_gb_per_s=self.speeds[0], network_gb_per_s=self.speeds[1])
        # By the entries as they stand: rows of the fleet's table find theirs by their place.
        edited = request_tables.with_details(edited, self.details)
        edited = request_tables.with_fleet(edited, self.fleet)
        edited = request_tables.with_pairs(edited, self.pairs)
        edited = request_tables.with_models(edited, self.models)
        edited = edit.with_allowed(edited, self.allowed)
        return edit.with_added(edited, self.added, self.profiles)


def limit_s(request: PlanRequest) -> float:
    """Seconds of search as the page offers them."""
    return min(max(request.solver.time_limit_s, 1.0), 3600.0)
