"""Where no pipeline across entries fits: the one that lacks least, were every device so much larger.

Stages are told by memory alone. At given bytes more a device, the most layers that entries hold with so many stages
follow by dynamic programming from the last stage to the first; the least bytes with which they hold all are halved to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from torchsplit_core.training.strategy.across.chain import Segment
from torchsplit_core.training.strategy.across.outcome import pipeline_words
from torchsplit_core.training.strategy.across.room import FIRST, LAST, MIDDLE, Counts, Floats, Room
from torchsplit_core.training.strategy.across.search import Pipeline, Stock, pipeline_of
from torchsplit_core.training.strategy.across.ways import Place, Way
from torchsplit_core.values.units import GIB

CLOSE = 1e-3
"""No pipeline lacks less than the one found by a larger share."""
MOST_BYTES = 2.0**50
NONE = -np.inf


@dataclass(frozen=True, slots=True)
class Nearest:
    """A pipeline, the bytes that a device of its fullest stage lacks, and that stage's entry, by its place."""

    pipeline: Pipeline
    missing_bytes: float
    entry: int


@dataclass(frozen=True, slots=True)
class Held:
    """Of an entry as so many stages, by the stages behind it: most layers that they hold, and the way that does."""

    layers: Floats
    way: Counts


Step = tuple[int, int, bool, int]
"""An entry of a pipeline: its place in the fleet, its stages, whether it is the first, and the stages behind it."""


def nearest(stock: Stock) -> Nearest | None:
    """Of all sets, orders, ways and micro-batches; None where none goes with the hosts' memory and what divides."""
    best: Nearest | None = None
    for one in _each_size(stock):
        best = one.than(best)
    return best


def fits(stock: Stock) -> bool:
    """Whether any pipeline does."""
    return any(one.at(0.0) is not None for one in _each_size(stock))


def nearest_words(stock: Stock) -> str:
    """What the nearest pipeline lacks, in words."""
    found = nearest(stock)
    if found is None:
        return "no division of the entries into stages goes with the model, the batch and the hosts' memory"
    machine = stock.searches[found.entry].machine
    return (
        f"the nearest ({pipeline_words(found.pipeline, stock.searches)}) would need "
        f"{found.missing_bytes / GIB:.3g} GiB more on fleet[{machine.fleet}], {machine.type}"
    )


def _each_size(stock: Stock) -> Iterator[_Nearer]:
    for sequences in stock.sizes:
        found = {place: list(stock.ways(place, sequences).all()) for place in range(len(stock.searches))}
        able = {place: Room(ways, stock.layers) for place, ways in found.items() if ways}
        if len(able) > 1:
            yield _Nearer(stock, sequences, able)


class _Nearer:
    """The search at one size of micro-batch."""

    def __init__(self, stock: Stock, sequences: int, rooms: Mapping[int, Room]) -> None:
        self.stock, self.sequences, self.rooms = stock, sequences, rooms
        self.layers = stock.layers
        self.chosen = {
            (place, count): np.flatnonzero(stages == count)
            for place, room in rooms.items()
            for stages in [np.array([way.choices.pipeline for way in room.ways])]
            for count in np.unique(stages).tolist()
            if count < self.layers
        }

    def than(self, best: Nearest | None) -> Nearest | None:
        """A pipeline that lacks less than the best known, or that one."""
        low, high = 0.0, GIB if best is None else best.missing_bytes * (1.0 - CLOSE)
        found = self.at(high)
        while found is None and best is None and high < MOST_BYTES:
            low, high = high, 2.0 * high
            found = self.at(high)
        if found is None:
            return best
        while found.missing_bytes - low > CLOSE * found.missing_bytes:
            middle = (low + found.missing_bytes) / 2.0
            nearer = self.at(middle)
            low, found = (middle, found) if nearer is None else (low, nearer)
        return found

    def at(self, more_bytes: float) -> Nearest | None:
        """A pipeline that fits were every device so much larger."""
        rooms = {place: room.layers(more_bytes) for place, room in self.rooms.items()}
        held = {
            (place, count, first): _held(rooms[place][ways], ways, count, first=first)
            for (place, count), ways in self.chosen.items()
            for first in (False, True)
        }
        steps = self._steps(held)
        return self._dealt(steps, held) if steps else None

    def _steps(self, held: Mapping[tuple[int, int, bool], Held]) -> list[Step]:
        """Entries from the first of the pipeline to the last that together hold all layers; none: nothing does."""
        values: dict[int, Floats] = {0: np.full(self.layers + 1, NONE)}
        values[0][0] = 0.0
        routes: dict[tuple[int, int], Step] = {}
        for mask in range(1 << len(self.stock.searches)):
            value = values.get(mask)
            if value is None:
                continue
            for place, count, first in held:
                if mask >> place & 1 or (first and not mask):
                    continue
                more = held[place, count, first].layers
                total = value[: len(more)] + more
                if first:
                    ends = np.flatnonzero(total >= self.layers)
                    if len(ends):
                        return [*self._back(routes, mask, (place, count, True, int(ends[0])))]
                    continue
                after = values.setdefault(mask | 1 << place, np.full(self.layers + 1, NONE))
                for behind in np.flatnonzero(total > after[count : count + len(total)]).tolist():
                    after[behind + count] = total[behind]
                    routes[mask | 1 << place, behind + count] = (place, count, False, behind)
        return []

    def _back(self, routes: Mapping[tuple[int, int], Step], mask: int, step: Step) -> Iterator[Step]:
        yield step
        while mask:
            step = routes[mask, step[3]]
            mask ^= 1 << step[0]
            yield step

    def _dealt(self, steps: list[Step], held: Mapping[tuple[int, int, bool], Held]) -> Nearest:
        """Layers, each to the stage that lacks least with it: so the fullest lacks least."""
        stages: list[tuple[int, Way, Place]] = []
        for number, (place, count, first, behind) in enumerate(steps):
            way = self.rooms[place].ways[int(held[place, count, first].way[behind])]
            last = number == len(steps) - 1
            for own in reversed(range(count)):
                ends = (first and own == count - 1, last and own == 0)
                far = (own == 0 and not last) or (own == count - 1 and not first)
                stages.append((number, way, Place(behind + own + 1, *ends, far)))
        layers = [1] * len(stages)
        for _ in range(self.layers - len(stages)):
            least = min(range(len(stages)), key=lambda one: _lacks(*stages[one][1:], layers[one] + 1))
            layers[least] += 1
        segments = tuple(
            Segment(
                number,
                next(way for of, way, _ in stages if of == number),
                tuple(one for one, (of, _, _) in zip(layers, stages, strict=True) if of == number),
                tuple(where for of, _, where in stages if of == number),
            )
            for number in range(len(steps))
        )
        entries = tuple(place for place, *_ in steps)
        m = self.stock.batch // self.sequences
        made = pipeline_of(entries, self.sequences, m, segments, self.stock.searches[0].c.fixed_s)
        lacking = [_lacks(way, where, own) for (_, way, where), own in zip(stages, layers, strict=True)]
        fullest = int(np.argmax(lacking))
        return Nearest(made, lacking[fullest], entries[stages[fullest][0]])


def _lacks(way: Way, place: Place, layers: int) -> float:
    """Bytes that a device of a stage lacks; below 0 what it has left. Infinite where the hosts lack some."""
    if way.host_bytes(layers, place.first or place.last) > way.search.machine.host_bytes:
        return float("inf")
    memory = way.memory(layers, place)
    return memory.total - memory.reserve - way.search.room


def _held(room: Counts, ways: Counts, count: int, *, first: bool) -> Held:
    """From the layers that each way's stages hold (way × stages behind × role): those of so many stages together."""
    own = np.where(room < 1, NONE, room)
    inside = own[:, :, MIDDLE]
    body = count - first
    windows = np.lib.stride_tricks.sliding_window_view(inside, body, axis=1) if body else inside[:, :, None]
    found = windows.sum(axis=2) if body else np.zeros(inside.shape)
    found = found[:, : inside.shape[1] - count + 1]
    if first:
        found = found + own[:, count - 1 :, FIRST]
        found[:, 0] = NONE
    else:
        found[:, 0] = own[:, 0, LAST] + inside[:, 1:count].sum(axis=1)
    of = found.argmax(axis=0)
    return Held(found[of, np.arange(found.shape[1])], ways[of])
