"""Cuts the day into windows of least cost, exactly.

The day is a circle of equal slots. A window's demand of a service is a rate of its slots (the largest, or the p95 over
all values in them), and its cost the sum of these, each times the service's weight, times its hours: what capacity is
held for. Of all ways to cut the day into so many windows the cheapest is found: for each slot at which the first window
may begin, a dynamic program over the ends of the windows after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.values import DemandLevels, InputFault

Floats = NDArray[np.float64]
WindowDemand = Literal["largest", "p95", "both"]
"""The demand of a window: the largest value, the p95 (linear between neighbours), or the mean and the p95; cut by
the p95."""


@dataclass(frozen=True, slots=True)
class DaySlots:
    """Values of a trace by time of day: (slots, values of a slot, services), holes as NaN; slots of `slot_s` seconds
    from midnight on."""

    names: tuple[str, ...]
    slot_s: int
    values: Floats

    @property
    def slots(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class DayCut:
    """Windows as (first slot, slots), by their first slot, and their cost: weight · requests/s · hours."""

    windows: tuple[tuple[int, int], ...]
    cost: float


def slots_of_day(trace: DemandTrace, slot_s: int) -> DaySlots:
    """The trace by time of day. Raises InputFault where slots do not fit the trace, and where one has no value."""
    if slot_s % trace.step_s or DAY_S % slot_s:
        raise InputFault(
            "--slot",
            f"is {slot_s / 60:g} min, and the trace has a row every {trace.step_s / 60:g} min",
            "Give a multiple of that, of which a day has a whole number.",
        )
    count = DAY_S // slot_s
    by_slot: list[list[list[float]]] = [[] for _ in range(count)]
    columns = [[np.nan if rate is None else rate for rate in rates] for rates in trace.rates.values()]
    for moment, rates in enumerate(zip(*columns, strict=True)):
        slot = (trace.first_s + moment * trace.step_s) % DAY_S // slot_s
        by_slot[slot].append(list(rates))
    most = max(map(len, by_slot))
    values = np.full((count, most, len(columns)), np.nan)
    for slot, rows in enumerate(by_slot):
        if rows:
            values[slot, : len(rows)] = rows
    for number, name in enumerate(trace.rates):
        empty = np.flatnonzero(np.isnan(values[:, :, number]).all(axis=1))
        if len(empty):
            first = int(empty[0]) * slot_s // 60
            raise InputFault(
                f"trace, {name}",
                f"has no value at {first // 60:02}:{first % 60:02} on any day",
                "Give a trace of the whole day, or wider slots (--slot).",
            )
    return DaySlots(tuple(trace.rates), slot_s, values)


def peak_weights(slots: DaySlots) -> Floats:
    """Weights under which each service counts in parts of its largest value; 0 for one without any demand."""
    peaks = np.nanmax(slots.values, axis=(0, 1))
    weights: Floats = np.divide(1.0, peaks, out=np.zeros_like(peaks), where=peaks > 0)
    return weights


def cut_day(slots: DaySlots, windows: int, demand: WindowDemand, weights: Floats | None = None) -> DayCut:
    """The cheapest cut into so many windows, `weights` of the services (default `peak_weights`).

    Of equal ones that which begins earliest. Raises InputFault for fewer than one window, or more than slots.
    """
    if not 1 <= windows <= slots.slots:
        remedy = "Ask for one window at least." if windows < 1 else "Ask for fewer windows."
        raise InputFault("--windows", f"is {windows}, and the day has {slots.slots} slots", remedy)
    costs = window_costs(slots, demand, peak_weights(slots) if weights is None else weights)
    if windows == 1:
        return DayCut(((0, slots.slots),), float(costs[0, -1]))
    return cheapest_cut(costs, windows)


def window_costs(slots: DaySlots, demand: WindowDemand, weights: Floats) -> Floats:
    """By first slot and number of slots less one the cost of that window."""
    count, hours = slots.slots, slots.slot_s / 3600
    costs = np.empty((count, count))
    lengths = np.arange(1, count + 1) * hours
    highest = np.nanmax(slots.values, axis=1)
    for first in range(count):
        order = (first + np.arange(count)) % count
        if demand == "largest":
            rates = np.maximum.accumulate(highest[order])
        else:
            rates = _growing_p95(slots.values[order])
        costs[first] = rates @ weights * lengths
    return costs


def _growing_p95(values: Floats) -> Floats:
    """By number of slots from the first on the p95 of each service, (slots, services)."""
    count, _, services = values.shape
    rates = np.empty((count, services))
    for number in range(services):
        ordered = np.empty(0)
        for at in range(count):
            fresh = values[at, :, number]
            fresh = np.sort(fresh[~np.isnan(fresh)])
            ordered = np.insert(ordered, np.searchsorted(ordered, fresh), fresh)
            rates[at, number] = _p95(ordered)
    return rates


def _p95(ordered: Floats) -> float:
    """Linear between neighbours, as in the tables of job histories."""
    place = 0.95 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (place - low) * (ordered[high] - ordered[low]))


def cheapest_cut(costs: Floats, windows: int) -> DayCut:
    """The cheapest cut of a circle, `costs` as `window_costs` gives them; at least two windows."""
    count = len(costs)
    ends, begins = np.arange(1, count + 1), np.arange(count)
    spans = ends[None, :] - begins[:, None]
    best_total, best_starts = np.inf, [0]
    for turn in range(count):
        turned = costs[(turn + begins) % count]
        table = np.where(spans > 0, np.take_along_axis(turned, np.maximum(spans - 1, 0), axis=1), np.inf)
        totals, choices = table[0], []
        for _ in range(windows - 1):
            # Up to slot b in one window less, then one from b on.
            joined = np.concatenate(([np.inf], totals[:-1]))[:, None] + table
            choices.append(joined.argmin(axis=0))
            totals = joined.min(axis=0)
        if totals[-1] < best_total * (1 - 1e-12):
            best_total, end, starts = float(totals[-1]), count, []
            for choice in reversed(choices):
                end = int(choice[end - 1])
                starts.append(end)
            best_starts = [turn, *((turn + start) % count for start in reversed(starts))]
    ordered = sorted(best_starts)
    following = [*ordered[1:], ordered[0] + count]
    return DayCut(
        tuple((first, later - first) for first, later in zip(ordered, following, strict=True)), best_total
    )


def window_levels(
    slots: DaySlots, cut: DayCut, demand: WindowDemand
) -> list[Mapping[str, float | DemandLevels]]:
    """By window the demand of each service, by name."""
    listed: list[Mapping[str, float | DemandLevels]] = []
    for first, length in cut.windows:
        values = slots.values[(first + np.arange(length)) % slots.slots].reshape(-1, len(slots.names))
        levels: dict[str, float | DemandLevels] = {}
        for number, name in enumerate(slots.names):
            known = np.sort(values[~np.isnan(values[:, number]), number])
            high = _p95(known)
            if demand == "both":
                levels[name] = DemandLevels(float(known.mean()), high)
            else:
                levels[name] = float(known[-1]) if demand == "largest" else high
        listed.append(levels)
    return listed
