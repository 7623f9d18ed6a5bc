"""Where no pipeline across entries fits: the one that lacks least, were every device so much larger.

Stages are told by memory alone. At given bytes more a device, the most layers that entries hold with so many stages
follow by dynamic programming from the last stage to the first; the least bytes with which they hold all are halved to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from torchsplit_core.strategy.search.hetero_pipeline.branch_and_bound import DevicePool, Pipeline, pipeline_of
from torchsplit_core.strategy.search.hetero_pipeline.memory_capacity import (
    FIRST,
    LAST,
    MIDDLE,
    Counts,
    Floats,
    StageCapacity,
)
from torchsplit_core.strategy.search.hetero_pipeline.outcome import describe_pipeline
from torchsplit_core.strategy.search.hetero_pipeline.stage_assignment import Segment
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig, StageRole
from torchsplit_core.values.units import GIB

CLOSE = 1e-3
"""No pipeline lacks less than the one found by a larger share."""
MOST_BYTES = 2.0**50
NONE = -np.inf


@dataclass(frozen=True, slots=True)
class ClosestInfeasible:
    """A pipeline, the bytes that a device of its fullest stage lacks, and that stage's entry, by its place."""

    pipeline: Pipeline
    missing_bytes: float
    entry: int


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Of an entry as so many stages, by the stages behind it: most layers that they hold, and the way that does."""

    layers: Floats
    way: Counts


PathStep = tuple[int, int, bool, int]
"""An entry of a pipeline: its place in the fleet, its stages, whether it is the first, and the stages behind it."""


def closest_infeasible(pool: DevicePool) -> ClosestInfeasible | None:
    """Of all sets, orders, ways and micro-batches; None where none goes with the hosts' memory and what divides."""
    best: ClosestInfeasible | None = None
    for search in _each_size(pool):
        best = search.improve(best)
    return best


def fits(pool: DevicePool) -> bool:
    """Whether any pipeline does."""
    return any(search.with_extra_memory(0.0) is not None for search in _each_size(pool))


def describe_closest(pool: DevicePool) -> str:
    """What the nearest pipeline lacks, in words."""
    closest = closest_infeasible(pool)
    if closest is None:
        return "no division of the entries into stages goes with the model, the batch and the hosts' memory"
    machine = pool.searches[closest.entry].machine
    return (
        f"the nearest ({describe_pipeline(closest.pipeline, pool.searches)}) would need "
        f"{closest.missing_bytes / GIB:.3g} GiB more on fleet[{machine.fleet}], {machine.type}"
    )


def _each_size(pool: DevicePool) -> Iterator[_ClosestSearch]:
    for sequences in pool.micro_batch_sizes:
        configs_of_entry = {
            place: list(pool.ways(place, sequences).all()) for place in range(len(pool.searches))
        }
        capacities = {
            place: StageCapacity(ways, pool.layers) for place, ways in configs_of_entry.items() if ways
        }
        if len(capacities) > 1:
            yield _ClosestSearch(pool, sequences, capacities)


class _ClosestSearch:
    """The search at one size of micro-batch."""

    def __init__(self, pool: DevicePool, sequences: int, capacities: Mapping[int, StageCapacity]) -> None:
        self.pool, self.sequences, self.capacities = pool, sequences, capacities
        self.layers = pool.layers
        self.chosen = {
            (place, count): np.flatnonzero(stages == count)
            for place, room in capacities.items()
            for stages in [np.array([way.choices.pipeline for way in room.ways])]
            for count in np.unique(stages).tolist()
            if count < self.layers
        }

    def improve(self, best: ClosestInfeasible | None) -> ClosestInfeasible | None:
        """A pipeline that lacks less than the best known, or that one."""
        low, high = 0.0, GIB if best is None else best.missing_bytes * (1.0 - CLOSE)
        closest = self.with_extra_memory(high)
        while closest is None and best is None and high < MOST_BYTES:
            low, high = high, 2.0 * high
            closest = self.with_extra_memory(high)
        if closest is None:
            return best
        while closest.missing_bytes - low > CLOSE * closest.missing_bytes:
            middle = (low + closest.missing_bytes) / 2.0
            closer = self.with_extra_memory(middle)
            low, closest = (middle, closest) if closer is None else (low, closer)
        return closest

    def with_extra_memory(self, more_bytes: float) -> ClosestInfeasible | None:
        """A pipeline that fits were every device so much larger."""
        rooms = {place: room.layers(more_bytes) for place, room in self.capacities.items()}
        held_by_stages = {
            (place, count, first): _held_layers(rooms[place][ways], ways, count, first=first)
            for (place, count), ways in self.chosen.items()
            for first in (False, True)
        }
        steps = self._steps(held_by_stages)
        return self._assign_layers(steps, held_by_stages) if steps else None

    def _steps(self, held_by_stages: Mapping[tuple[int, int, bool], HeldMemory]) -> list[PathStep]:
        """Entries from the first of the pipeline to the last that together hold all layers; none: nothing does."""
        values: dict[int, Floats] = {0: np.full(self.layers + 1, NONE)}
        values[0][0] = 0.0
        routes: dict[tuple[int, int], PathStep] = {}
        for mask in range(1 << len(self.pool.searches)):
            value = values.get(mask)
            if value is None:
                continue
            for place, count, first in held_by_stages:
                if mask >> place & 1 or (first and not mask):
                    continue
                more = held_by_stages[place, count, first].layers
                total = value[: len(more)] + more
                if first:
                    ends = np.flatnonzero(total >= self.layers)
                    if len(ends):
                        return [*self._trace_back(routes, mask, (place, count, True, int(ends[0])))]
                    continue
                after = values.setdefault(mask | 1 << place, np.full(self.layers + 1, NONE))
                for behind in np.flatnonzero(total > after[count : count + len(total)]).tolist():
                    after[behind + count] = total[behind]
                    routes[mask | 1 << place, behind + count] = (place, count, False, behind)
        return []

    def _trace_back(
        self, routes: Mapping[tuple[int, int], PathStep], mask: int, step: PathStep
    ) -> Iterator[PathStep]:
        yield step
        while mask:
            step = routes[mask, step[3]]
            mask ^= 1 << step[0]
            yield step

    def _assign_layers(
        self, steps: list[PathStep], held_by_stages: Mapping[tuple[int, int, bool], HeldMemory]
    ) -> ClosestInfeasible:
        """Layers, each to the stage that lacks least with it: so the fullest lacks least."""
        stages: list[tuple[int, StageConfig, StageRole]] = []
        for number, (place, count, first, behind) in enumerate(steps):
            way = self.capacities[place].ways[int(held_by_stages[place, count, first].way[behind])]
            last = number == len(steps) - 1
            for number_behind in reversed(range(count)):
                ends = (first and number_behind == count - 1, last and number_behind == 0)
                far = (number_behind == 0 and not last) or (number_behind == count - 1 and not first)
                stages.append((number, way, StageRole(behind + number_behind + 1, *ends, far)))
        layers = [1] * len(stages)
        for _ in range(self.layers - len(stages)):
            least = min(
                range(len(stages)), key=lambda index: _shortfall(*stages[index][1:], layers[index] + 1)
            )
            layers[least] += 1
        segments = tuple(
            Segment(
                number,
                next(way for of, way, _ in stages if of == number),
                tuple(
                    layer_count
                    for layer_count, (of, _, _) in zip(layers, stages, strict=True)
                    if of == number
                ),
                tuple(where for of, _, where in stages if of == number),
            )
            for number in range(len(steps))
        )
        entries = tuple(place for place, *_ in steps)
        m = self.pool.batch // self.sequences
        pipeline = pipeline_of(entries, self.sequences, m, segments, self.pool.searches[0].c.fixed_s)
        shortfalls = [
            _shortfall(way, where, number_behind)
            for (_, way, where), number_behind in zip(stages, layers, strict=True)
        ]
        fullest = int(np.argmax(shortfalls))
        return ClosestInfeasible(pipeline, shortfalls[fullest], entries[stages[fullest][0]])


def _shortfall(way: StageConfig, place: StageRole, layers: int) -> float:
    """Bytes that a device of a stage lacks; below 0 what it has left. Infinite where the hosts lack some."""
    if way.host_bytes(layers, place.first or place.last) > way.search.machine.host_bytes:
        return float("inf")
    memory = way.memory(layers, place)
    return memory.total - memory.reserve - way.search.usable_bytes


def _held_layers(room: Counts, ways: Counts, count: int, *, first: bool) -> HeldMemory:
    """From the layers that each way's stages hold (way × stages behind × role): those of so many stages together."""
    layers = np.where(room < 1, NONE, room)
    inside = layers[:, :, MIDDLE]
    body = count - first
    windows = np.lib.stride_tricks.sliding_window_view(inside, body, axis=1) if body else inside[:, :, None]
    totals = windows.sum(axis=2) if body else np.zeros(inside.shape)
    totals = totals[:, : inside.shape[1] - count + 1]
    if first:
        totals = totals + layers[:, count - 1 :, FIRST]
        totals[:, 0] = NONE
    else:
        totals[:, 0] = layers[:, 0, LAST] + inside[:, 1:count].sum(axis=1)
    best = totals.argmax(axis=0)
    return HeldMemory(totals[best, np.arange(totals.shape[1])], ways[best])
