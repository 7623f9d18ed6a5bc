"""The known plans of a workspace, by request: plans found by explanations, sweeps, searches and drafts.

Equivalent requests (`planning.request.equivalence`) share one plan, whatever their GPUs are called. The plans are no
results: results and archives do not include them. The oldest beyond `MOST_PLANS` are deleted.
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
"""Most plans of similar requests from which an edit may start."""


class PlanCache:
    """The known plans of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def store(self, request: PlanRequest, outcome: PlanOutcome) -> None:
        """Store a verified outcome of the request, unless a better one is known or it is a timeout."""
        from torchsplit_core.latency_slo.incumbent import update_incumbent

        if outcome.status == "timeout":
            return
        # Its search may have had another time limit, which equivalence ignores.
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
        """The best known outcome of the request, verified against it; None if none is known."""
        with self.workspace.store.connect() as database:
            outcome = self._outcome(database, equivalence_hash(request))
        return None if outcome is None else with_request_ids(request, outcome)

    def first_bound(self, request: PlanRequest) -> float | None:
        """The proven bound of the objective's first level, from the outcome for that level alone."""
        with self.workspace.store.connect() as database:
            outcome = self._outcome(database, first_level_hash(request))
        return None if outcome is None else first_bound(outcome.objective)

    def warm_starts(self, request: PlanRequest) -> tuple[PlanOutcome, ...]:
        """Plans of similar requests with the same models, the most promising first, not verified for this request.

        One of them is the plan for the request's first level alone, if known.
        """
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
    """A stored plan, cached: moving a slider needs the same ones again and again."""
    outcome: PlanOutcome = read_compressed(content)
    return outcome


def family(request: PlanRequest) -> str:
    """Key shared by requests with models of the same names."""
    return hashlib.sha256(json.dumps(sorted(model.name for model in request.models)).encode()).hexdigest()
