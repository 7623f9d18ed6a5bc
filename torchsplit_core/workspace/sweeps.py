"""The last sweep of every scenario of a workspace, stored plan by plan: an interrupted one continues where it stopped.

A sweep is not listed among the results; it is copied, renamed and deleted with its scenario.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from torchsplit_core.files import read_text, write_text
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.points import SweepPoint, SweepRequest, sweep_points, sweep_requests
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, quoted
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The plan of one value, and the time limit of its search in seconds."""

    outcome: PlanOutcome
    limit_s: float

    def is_sufficient(self, limit_s: float) -> bool:
        """Whether no search of so many seconds is needed: the plan is proven, or its search had as long."""
        return self.outcome.status in ("optimal", "infeasible") or self.limit_s >= limit_s


@dataclass(frozen=True, slots=True)
class StoredSweep:
    """The sweep's parameter and request, and the plans so far by value."""

    what: SweepRequest
    request: PlanRequest
    plans: Mapping[float, StoredPlan]

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """The solved points, ascending."""
        return sweep_points(
            self.request, self.what, {value: plan.outcome for value, plan in self.plans.items()}
        )


class SweepStore:
    """The sweep of one scenario."""

    def __init__(self, workspace: Workspace, scenario: str) -> None:
        self.workspace, self.scenario = workspace, scenario
        self._key = (workspace.id, scenario)

    def begin(self, what: SweepRequest, request: PlanRequest, keys: Mapping[float, str]) -> None:
        """Make this the scenario's sweep; `keys`: the request hash of each value. Plans of other values are deleted."""
        with self.workspace.store.connect(write=True) as database:
            _begin(database, self._key, what, request, keys)

    def save_plan(self, outcome: PlanOutcome, limit_s: float) -> None:
        """Store a point under the hash of its request. Raises InputFault if the sweep was deleted."""
        try:
            with self.workspace.store.connect() as database:
                _save_plan(database, self._key, outcome, limit_s)
        except sqlite3.IntegrityError as error:
            problem = f"{quoted(self.scenario)} has no sweep any more: it was deleted meanwhile"
            raise InputFault("sweep", problem, "Start the sweep again.") from error

    def load(self) -> StoredSweep | None:
        """The sweep so far; None if there is none. Raises InputFault for a damaged store."""
        with self.workspace.store.connect() as database:
            row = database.execute(
                "SELECT asked, request FROM sweeps WHERE workspace = ? AND scenario = ?", self._key
            ).fetchone()
            rows = database.execute(
                "SELECT request_sha256, limit_s, plan FROM sweep_plans WHERE workspace = ? AND scenario = ?",
                self._key,
            ).fetchall()
        if row is None:
            return None
        header = json.loads(row[0])
        what = SweepRequest(header["parameter"], header["target"], tuple(header["values"]))
        by_key = {digest: StoredPlan(_read(text), limit_s) for digest, limit_s, text in rows}
        plans = {
            value: by_key[key]
            for value, key in zip(what.values, header["keys"], strict=True)
            if key in by_key
        }
        return StoredSweep(what, _read(row[1]), plans)

    def copy_to(self, scenario: str) -> None:
        """Replace the sweep of another scenario of the workspace by this one; without a sweep, delete it."""
        with self.workspace.store.connect() as database:
            database.execute(
                "DELETE FROM sweeps WHERE workspace = ? AND scenario = ?", (self.workspace.id, scenario)
            )
            for table, columns in (
                ("sweeps", "asked, request"),
                ("sweep_plans", "request_sha256, limit_s, plan"),
            ):
                database.execute(
                    f"INSERT INTO {table} (workspace, scenario, {columns}) "
                    f"SELECT workspace, ?, {columns} FROM {table} WHERE workspace = ? AND scenario = ?",
                    (scenario, *self._key),
                )

    def delete(self) -> None:
        """Remove the scenario's sweep."""
        with self.workspace.store.connect() as database:
            database.execute("DELETE FROM sweeps WHERE workspace = ? AND scenario = ?", self._key)


def write_sweep(database: sqlite3.Connection, workspace: str, scenario: str, sweep: StoredSweep) -> None:
    """Make a whole sweep the scenario's, in the caller's transaction."""
    requests = sweep_requests(sweep.request, sweep.what)
    key = (workspace, scenario)
    _begin(
        database,
        key,
        sweep.what,
        sweep.request,
        {value: request_hash(request) for value, request in requests},
    )
    for plan in sweep.plans.values():
        _save_plan(database, key, plan.outcome, plan.limit_s)


def _begin(
    database: sqlite3.Connection,
    key: tuple[str, str],
    what: SweepRequest,
    request: PlanRequest,
    keys: Mapping[float, str],
) -> None:
    header = json.dumps(asdict(what) | {"keys": [keys[value] for value in what.values]})
    database.execute(
        "INSERT INTO sweeps VALUES (?, ?, ?, ?) ON CONFLICT (workspace, scenario) "
        "DO UPDATE SET asked = excluded.asked, request = excluded.request",
        (*key, header, write_text(request)),
    )
    known = database.execute(
        "SELECT request_sha256 FROM sweep_plans WHERE workspace = ? AND scenario = ?", key
    ).fetchall()
    for (digest,) in known:
        if digest not in keys.values():
            database.execute(
                "DELETE FROM sweep_plans WHERE workspace = ? AND scenario = ? AND request_sha256 = ?",
                (*key, digest),
            )


def _save_plan(
    database: sqlite3.Connection, key: tuple[str, str], outcome: PlanOutcome, limit_s: float
) -> None:
    database.execute(
        "INSERT OR REPLACE INTO sweep_plans VALUES (?, ?, ?, ?, ?)",
        (*key, outcome.request_sha256, limit_s, write_text(outcome)),
    )


@lru_cache(maxsize=256)
def _read(text: str) -> Any:
    """The value of a stored file, cached: a page that draws every second parses each plan once."""
    return read_text(text, origin="a stored sweep")[1]
