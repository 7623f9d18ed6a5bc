"""The differences of two requests, each with its old and new value as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchsplit_core.planning.request.fleet_text import format_layouts
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.values import Colocation, FleetEntry, PlanModel, PlanRequest, TraceArrivals
from torchsplit_core.values.plan.request import MigMode
from torchsplit_core.values.simulation.arrivals_text import arrivals_text

RequestPart = Literal["fleet", "models", "links", "pairs", "objective"]
NOT_GIVEN = "none"
"""The text of a missing value."""

MIG_WORDS: dict[MigMode, str] = {True: "on", False: "off", "either": "on or off"}

MOST_LISTED = 6
"""Variants named in a change; above, only the added and removed ones."""


@dataclass(frozen=True, slots=True)
class RequestChange:
    """One difference: the part of the request, what it is about, and both values as text.

    `old` is empty for something added, `new` for something removed.
    """

    part: RequestPart
    what: str
    old: str
    new: str

    @property
    def description(self) -> str:
        """For example "demand of bert 46 → 57.5"."""
        if not self.old:
            return f"{self.what} added" + (f": {self.new}" if self.new != self.what else "")
        if not self.new:
            return f"{self.what} removed"
        return f"{self.what} {self.old} → {self.new}"


def difference(before: PlanRequest, after: PlanRequest) -> tuple[RequestChange, ...]:
    """From request `before` to request `after`: fleet first, then models, links, pairs, the objective.

    Of points it reports only that they differ.
    """
    return (
        *_fleet(before.gpus, after.gpus),
        *_current(before, after),
        *_models(before.models, after.models),
        *_field_change("links", "link", before, after, ("link_gb_per_s",), "GB/s"),
        *_field_change("links", "network", before, after, ("network_gb_per_s",), "GB/s"),
        *_frontend(before, after),
        *_pairs(before.colocations, after.colocations),
        *_objective(before, after),
    )


def describe_changes(before: PlanRequest, after: PlanRequest) -> tuple[str, ...]:
    """`difference` in words, one text each."""
    return tuple(change.description for change in difference(before, after))


def _fleet(before: Sequence[FleetEntry], after: Sequence[FleetEntry]) -> Iterator[RequestChange]:
    if [entry.type for entry in before] == [entry.type for entry in after]:
        # Row by row: a row changed to whole GPUs is the same row.
        mig_changed = [
            number for number, (was, now) in enumerate(zip(before, after, strict=True)) if was.mig != now.mig
        ]
        for number in mig_changed:
            row = f" (row {number + 1})" if len(before) > 1 else ""
            states = (MIG_WORDS[rows[number].mig] for rows in (before, after))
            yield RequestChange("fleet", f"MIG of {before[number].type}{row}", *states)
        before, after = (
            [replace(entry, mig=number in mig_changed or entry.mig) for number, entry in enumerate(rows)]
            for rows in (before, after)
        )
    old, new = _index_entries(before), _index_entries(after)
    for key in dict.fromkeys((*old, *new)):
        was, now, name = old.get(key), new.get(key), _entry_label(*key)
        if was is None or now is None:
            yield RequestChange(
                "fleet", name, "" if was is None else str(was.count), "" if now is None else str(now.count)
            )
            continue
        if was.count != now.count:
            yield RequestChange("fleet", name, str(was.count), str(now.count))
        for field, label in (("id", "id"), ("node", "node"), ("cost", "price"), ("cost_date", "price date")):
            # A row with several GPUs has no id: losing it follows from its count.
            if field != "id" or was.count == now.count:
                yield from _field_change("fleet", f"{label} of {name}", was, now, (field,))
        layouts = [format_layouts(entry.layouts) or "all" for entry in (was, now)]
        if layouts[0] != layouts[1]:
            yield RequestChange("fleet", f"layouts of {name}", *layouts)


def _current(before: PlanRequest, after: PlanRequest) -> Iterator[RequestChange]:
    if before.current != after.current:
        was, now = (
            NOT_GIVEN if state is None else f"{len(state.gpus)} GPUs"
            for state in (before.current, after.current)
        )
        yield RequestChange("fleet", "what runs now", was, "another state" if now == was else now)


def _index_entries(entries: Sequence[FleetEntry]) -> dict[tuple[str, MigMode, int], FleetEntry]:
    """Entries by type, whether MIG is on, and their index among equal ones."""
    indexed: dict[tuple[str, MigMode, int], FleetEntry] = {}
    for entry in entries:
        number = sum(key[:2] == (entry.type, entry.mig) for key in indexed)
        indexed[entry.type, entry.mig, number] = entry
    return indexed


def _entry_label(kind: str, mig: MigMode, number: int) -> str:
    return (
        kind
        + {True: "", False: ", whole", "either": ", MIG on or off"}[mig]
        + (f" (row {number + 1})" if number else "")
    )


def _frontend(before: PlanRequest, after: PlanRequest) -> Iterator[RequestChange]:
    if before.front != after.front:
        costs = (
            NOT_GIVEN if request.front is None else f"{request.front.ms_per_request:.3g} ms a request"
            for request in (before, after)
        )
        yield RequestChange("fleet", "costs of the front", *costs)


def _models(before: Sequence[PlanModel], after: Sequence[PlanModel]) -> Iterator[RequestChange]:
    old, new = ({model.name: model for model in models} for models in (before, after))
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name), new.get(name)
        if was is now:
            continue
        if was is None or now is None:
            yield RequestChange("models", name, name if was else "", name if now else "")
            continue
        for field, label, unit in (
            ("demand_rps", "demand", ""),
            ("max_latency_ms", "p95 limit", "ms"),
            ("max_response_ms", "response limit", "ms"),
            ("response_percentile", "response percentile", ""),
            ("min_throughput_rps", "minimum", "req/s"),
            ("weight", "weight", ""),
            ("tier", "tier", ""),
            ("cap_at_demand", "cap", ""),
        ):
            yield from _field_change("models", f"{label} of {name}", was, now, (field,), unit)
        yield from _arrivals(name, was, now)
        for field, noun in (("demand_windows", "windows"), ("demand_samples", "samples")):
            if getattr(was, field) != getattr(now, field):
                counts = (f"{len(getattr(model, field))} {noun}" for model in (was, now))
                yield RequestChange("models", f"demand over the day of {name}", *counts)
        yield from _variants(name, was, now)


def _arrivals(name: str, was: PlanModel, now: PlanModel) -> Iterator[RequestChange]:
    if was.arrivals == now.arrivals:
        return
    texts = [arrivals_text(model.arrivals, model.demand_rps) or "poisson" for model in (was, now)]
    if texts[0] != texts[1]:
        yield RequestChange("models", f"arrivals of {name}", *texts)
    elif isinstance(now.arrivals, TraceArrivals):
        yield RequestChange("models", f"arrivals of {name}", texts[0], "other times")


def _variants(name: str, was: PlanModel, now: PlanModel) -> Iterator[RequestChange]:
    if was.variants is now.variants or was.variants == now.variants:
        return
    before, after = ([variant.name for _, variant in model.allowed_variants] for model in (was, now))
    if before != after:
        yield RequestChange("models", f"variants of {name}", *_format_lists(before, after))
    else:
        yield RequestChange("models", f"figures of {name}", *map(_points, (was, now)))


def _format_lists(before: list[str], after: list[str]) -> tuple[str, str]:
    """Both lists; or, if they are long, their lengths and what the other lacks."""
    if len(before) + len(after) <= MOST_LISTED:
        return ", ".join(before) or NOT_GIVEN, ", ".join(after) or NOT_GIVEN
    return _format_extra(before, after), _format_extra(after, before)


def _format_extra(names: list[str], other: list[str]) -> str:
    extra = [name for name in names if name not in other]
    counted = f"{len(names)} variant{'' if len(names) == 1 else 's'}"
    return f"{counted}, with {', '.join(extra)}" if extra else counted


def _points(model: PlanModel) -> str:
    return f"{len(model.points)} points"


def _pairs(before: Sequence[Colocation], after: Sequence[Colocation]) -> Iterator[RequestChange]:
    old, new = ({_pair(pair): pair for pair in pairs} for pairs in (before, after))
    for name in dict.fromkeys((*old, *new)):
        if name not in old or name not in new:
            yield RequestChange("pairs", name, name if name in old else "", name if name in new else "")


def _pair(pair: Colocation) -> str:
    carried = f", {pair.bytes_per_request / 1e6:.6g} MB" if pair.bytes_per_request else ""
    verb = "together" if pair.mode == "hard" else "rather together"
    return f"{' and '.join(pair.models)} {verb}{carried}"


def _objective(before: PlanRequest, after: PlanRequest) -> Iterator[RequestChange]:
    old, new = (goal_of(request).short for request in (before, after))
    if old != new:
        yield RequestChange("objective", "objective", old, new)
    for label, fields, unit in (
        ("slices", ("sharing",), ""),
        ("tenants of a slice", ("max_tenants_per_slice",), ""),
        ("penalty of memory", ("objective", "memory_violation_penalty"), ""),
        ("weight of separation", ("objective", "separation_weight"), ""),
        ("GPUs it survives", ("objective", "survives"), ""),
        ("GPUs that may change", ("objective", "max_touched_gpus"), ""),
        ("share of samples", ("objective", "attainment"), ""),
        ("search", ("solver", "time_limit_s"), "s"),
        ("plan at", ("solver", "plan_at"), ""),
        ("demand of windows", ("plan_demand_at",), ""),
    ):
        yield from _field_change("objective", label, before, after, fields, unit)


def _field_change(
    part: RequestPart, what: str, before: Any, after: Any, fields: Sequence[str], unit: str = ""
) -> Iterator[RequestChange]:
    """The change of a field, nested as `fields` says; none if it is unchanged."""
    for field in fields:
        before, after = getattr(before, field), getattr(after, field)
    if before != after:
        yield RequestChange(part, what, _format_value(before, unit), _format_value(after, unit))


def _format_value(value: Any, unit: str) -> str:
    if value is None:
        return NOT_GIVEN
    if isinstance(value, bool):
        return "on" if value else "off"
    number = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{number} {unit}" if unit else number
