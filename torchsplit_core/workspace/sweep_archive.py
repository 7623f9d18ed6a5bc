"""Sweeps in a workspace's archive: an optional part of the manifest, and one file a request or plan.

They are untrusted like everything in an archive: every value is checked, and every plan is verified from its request
alone, without the solver, as before it was stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torchsplit_core.files import UPLOAD_BYTES, read_text, write_text
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_requests
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, quoted
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.sweeps import StoredPlan, StoredSweep, SweepStore

EXPORT_AGAIN = "Export it again."


def sweep_entries(workspace: Workspace, add: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """The manifest's entries of the sweeps; `add` gets the archive name and the text of each file.

    Leaves out a sweep whose scenario has no request any more. Raises InputFault for a damaged store.
    """
    entries = []
    for number, artifact in enumerate(workspace.artifacts("plan_request")):
        stored = SweepStore(workspace, artifact.name).load()
        if stored is None:
            continue
        folder = f"sweeps/{number:04d}"
        add(f"{folder}/request", write_text(stored.request))
        plans = []
        for index, (value, plan) in enumerate(stored.plans.items()):
            add(f"{folder}/{index:02d}", write_text(plan.outcome))
            plans.append({"value": value, "limit_s": plan.limit_s, "file": f"{folder}/{index:02d}"})
        entries.append(
            {
                "scenario": artifact.name,
                "parameter": stored.what.parameter,
                "target": stored.what.target,
                "values": list(stored.what.values),
                "request": f"{folder}/request",
                "plans": plans,
            }
        )
    return entries


def read_sweeps(
    entries: Any, scenarios: Collection[str], read: Callable[[str], str], *, verify: bool = True
) -> tuple[tuple[str, StoredSweep], ...]:
    """The sweeps of a manifest by scenario; `read` gives the text of a file inside the archive.

    `scenarios`: the names of the archive's plan requests. `verify` False skips the verification of plans, for archives
    already verified. Raises InputFault for anything that `sweep_entries` does not write.
    """
    if not isinstance(entries, list):
        raise InputFault("archive: sweeps", f"are {quoted(entries)}, not a list", EXPORT_AGAIN)
    sweeps: dict[str, StoredSweep] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise InputFault("archive: sweeps", f"{quoted(entry)} is not an object", EXPORT_AGAIN)
        name = entry.get("scenario")
        if not isinstance(name, str) or name not in scenarios:
            raise InputFault("archive: sweeps", f"{quoted(name)} is no scenario of the archive", EXPORT_AGAIN)
        if name in sweeps:
            raise InputFault("archive: sweeps", f"the scenario {quoted(name)} has two", EXPORT_AGAIN)
        sweeps[name] = _read_sweep(f"archive: sweep of {name}", entry, read, verify)
    return tuple(sweeps.items())


def _read_sweep(
    where: str, entry: Mapping[str, Any], read: Callable[[str], str], verify: bool
) -> StoredSweep:
    values, plans = entry.get("values"), entry.get("plans")
    if not isinstance(values, list) or not isinstance(plans, list):
        raise InputFault(where, "has values or plans that are not lists", EXPORT_AGAIN)
    what = SweepRequest(
        _text(where, entry, "parameter"),  # type: ignore[arg-type]
        _text(where, entry, "target"),
        tuple(_number(where, value) for value in values),
    )
    request: PlanRequest = read_text(
        read(_text(where, entry, "request")),
        origin=where,
        expected="torchsplit.plan_request",
        memory_bytes=UPLOAD_BYTES,
    )[1]
    requests = dict(sweep_requests(request, what))
    stored_plans: dict[float, StoredPlan] = {}
    for item in plans:
        if not isinstance(item, dict):
            raise InputFault(where, f"{quoted(item)} is not an object", EXPORT_AGAIN)
        value, limit_s = _number(where, item.get("value")), _number(where, item.get("limit_s"))
        if value not in requests or value in stored_plans or limit_s < 0:
            problem = (
                f"has a plan with the time limit {limit_s:g} s"
                if limit_s < 0
                else f"has two plans at {value:g}"
                if value in stored_plans
                else f"has a plan at {value:g}, which is none of its values"
            )
            raise InputFault(where, problem, EXPORT_AGAIN)
        outcome: PlanOutcome = read_text(
            read(_text(where, item, "file")),
            origin=where,
            expected="torchsplit.plan",
            memory_bytes=UPLOAD_BYTES,
        )[1]
        for fault in violations(requests[value], outcome) if verify else ():
            raise InputFault(
                f"{where} at {value:g}", f"the plan is none of its request: {fault}", EXPORT_AGAIN
            )
        stored_plans[value] = StoredPlan(outcome, limit_s)
    return StoredSweep(what, request, stored_plans)


def _text(where: str, entry: Mapping[str, Any], key: str) -> str:
    text = entry.get(key)
    if not isinstance(text, str):
        raise InputFault(f"{where}: {key}", f"is {quoted(text)}, not a text", EXPORT_AGAIN)
    return text


def _number(where: str, value: object) -> float:
    if not isinstance(value, bool) and isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise InputFault(where, f"has {quoted(value)} in place of a finite number", EXPORT_AGAIN)
