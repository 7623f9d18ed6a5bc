"""The known plans of a workspace: what explanations, sweeps, searches and drafts have found, by question.

Two requests that ask the same (`planning.request.question`) share one answer, whatever their GPUs are called. The
plans are no results: they are not listed among them, and an archive does not have them. The oldest beyond
`MOST_PLANS` go.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from torchsplit_core.files import write_text
from torchsplit_core.planning.outcome.fleet_mapping import with_canonical_ids, with_request_ids
from torchsplit_core.planning.request.equivalence import equivalence_hash, first_level_hash
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import first_bound
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.drafts import compress_text, read_compressed
from torchsplit_core.workspace.plan_cache.warm_start_ranking import PlanSummary, rank_warm_starts, summarize
from torchsplit_core.workspace.store import Workspace

if TYPE_CHECKING:
    import sqlite3

MOST_PLANS = 400
MAX_WARM_STARTS = 3
"""Plans of similar requests that an edit is offered to begin with."""


class PlanCache:
    """The known plans of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def store(self, request: PlanRequest, outcome: PlanOutcome) -> None:
        """Keep a verified answer of the request, unless a better one is known; a timeout is none."""
        from torchsplit_core.latency_slo.incumbent import update_incumbent

        if outcome.status == "timeout":
            return
        # Its search may have had another limit, which is no part of the question.
        outcome = replace(outcome, request_sha256=request_hash(request))
        key = equivalence_hash(request)
        with self.workspace.store.connect(write=True) as database:
            stored = self._outcome(database, key)
            known = None if stored is None else with_request_ids(request, stored)
            best = outcome if known is None else update_incumbent(request, known, outcome)
            if known is not None and replace(best, statistics=known.statistics, explanation=None) == known:
                return
            summary_row = json.dumps(summarize(request, best).as_row())
            plan = compress_text(write_text(with_canonical_ids(request, best)).encode())
            database.execute(
                "INSERT OR REPLACE INTO known_plans (workspace, question, family, about, plan) VALUES (?, ?, ?, ?, ?)",
                (self.workspace.id, key, family(request), summary_row, plan),
            )
            database.execute(
                "DELETE FROM known_plans WHERE number IN (SELECT number FROM known_plans WHERE workspace = ? "
                "ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (self.workspace.id, MOST_PLANS),
            )

    def lookup(self, request: PlanRequest) -> PlanOutcome | None:
        """The best known answer to the request, checked against it; None where none is known."""
        with self.workspace.store.connect() as database:
            outcome = self._outcome(database, equivalence_hash(request))
        return None if outcome is None else with_request_ids(request, outcome)

    def first_bound(self, request: PlanRequest) -> float | None:
        """What is proven of the first level of the request's objective by the answer to that level alone."""
        with self.workspace.store.connect() as database:
            outcome = self._outcome(database, first_level_hash(request))
        return None if outcome is None else first_bound(outcome.objective)

    def warm_starts(self, request: PlanRequest) -> tuple[PlanOutcome, ...]:
        """Plans of similar requests with the same models, the most promising first; whether one is possible here and
        what it gives is for its check to say. The first level alone of the same request counts among them."""
        with self.workspace.store.connect() as database:
            rows = database.execute(
                "SELECT question, about FROM known_plans WHERE workspace = ? AND family = ? ORDER BY number DESC",
                (self.workspace.id, family(request)),
            ).fetchall()
            summaries = {
                question: PlanSummary.of_row(json.loads(summary_row)) for question, summary_row in rows
            }
            first = first_level_hash(request)
            keys = [first] if first in summaries else []
            keys += [question for question in rank_warm_starts(request, summaries) if question != first]
            outcomes = [self._outcome(database, question) for question in keys[:MAX_WARM_STARTS]]
        return tuple(outcome for outcome in outcomes if outcome is not None)

    def _outcome(self, database: sqlite3.Connection, key: str) -> PlanOutcome | None:
        row = database.execute(
            "SELECT plan FROM known_plans WHERE workspace = ? AND question = ?",
            (self.workspace.id, key),
        ).fetchone()
        if row is None:
            return None
        return _read(row[0])


@lru_cache(maxsize=128)
def _read(content: bytes) -> PlanOutcome:
    """A stored plan; whoever moves a slider asks for the same ones again and again."""
    outcome: PlanOutcome = read_compressed(content)
    return outcome


def family(request: PlanRequest) -> str:
    """What requests with models of the same names share."""
    return hashlib.sha256(json.dumps(sorted(model.name for model in request.models)).encode()).hexdigest()
