"""Blocks of a pipeline that move to other stages by measured seconds, seldom: pure, of the figures that it is told."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from statistics import median

from torchsplit_core.running.adapt.division import best_layers
from torchsplit_core.running.adapt.memory import SHORT
from torchsplit_core.running.adapt.speed import LEAST_GAIN, STEPS
from torchsplit_core.running.adapt.told import Told
from torchsplit_core.running.staged.blocks import Blocks, ranges_of


@dataclass(frozen=True, slots=True)
class Move:
    """The blocks of each stage from now on, the stage that is longest so far, and in words what moves and why.

    `step_s`: measured seconds of a step before it, `predicted_s`: reckoned ones after it.
    """

    layers: tuple[int, ...]
    longest: int
    what: str
    why: str
    step_s: float
    predicted_s: float


class Mover:
    """Deals the blocks out anew where a step becomes a tenth shorter and that outweighs what the move takes.

    `layers`: blocks of each stage; stage s is on process s mod `processes`. Seconds of a block are those of one
    micro-batch, forward and backward, on its slowest rank, the median of five steps. Devices are told apart by blocks
    of one kind that several of them have; where two have none in common they count as equally fast.
    """

    def __init__(self, blocks: Blocks, layers: Sequence[int], processes: int) -> None:
        self.blocks, self.layers, self.processes = blocks, tuple(layers), processes
        self._stages = ranges_of(layers)
        self._home = [stage % processes for stage, places in enumerate(self._stages) for _ in places]
        self._seconds: deque[tuple[float, ...]] = deque(maxlen=STEPS)
        self._steps: deque[float] = deque(maxlen=STEPS)
        self._heard = 0
        self._size: tuple[int, int] | None = None
        self._clock_s: float | None = None

    def heard(self, told: Sequence[Told], micro_batches: int, samples: int) -> None:
        """What all ranks tell of a whole step, of so many micro-batches of so many samples."""
        if self._size != (micro_batches, samples):
            self._size = micro_batches, samples
            self._forget()
        # The first rank's clock is everyone's.
        if self._clock_s is not None:
            self._steps.append(told[0].clock_s - self._clock_s)
        self.passed_over(told)
        self._seconds.append(tuple(map(max, zip(*(one.blocks_s for one in told), strict=True))))
        self._heard += 1

    def passed_over(self, told: Sequence[Told]) -> None:
        """A step of which nothing counts but when it ended: the first of a start, or one with fewer samples."""
        self._clock_s = told[0].clock_s

    def _forget(self) -> None:
        self._seconds.clear()
        self._steps.clear()
        self._heard = 0

    @property
    def step_s(self) -> float | None:
        """Of a step lately; None while fewer than five are known."""
        return median(self._steps) if len(self._steps) == STEPS else None

    def better(self, told: Sequence[Told], steps_left: int) -> Move | None:
        """Another division, where it is worth what it takes; looked for every five steps."""
        step_s = self.step_s
        if step_s is None or self._heard % STEPS:
            return None
        *seconds, loss_s = [median(one) for one in zip(*self._seconds, strict=True)]
        slowness = self._slowness(seconds)
        alike: list[float] = [one / slowness[home] for one, home in zip(seconds, self._home, strict=True)]
        work = [0.0, *accumulate(alike)]
        room = self._room(told)
        last = len(self.layers) - 1

        def taken(stage: int, first: int, stop: int) -> float:
            if self._added_bytes(stage, first, stop) > room[stage % self.processes]:
                return math.inf
            own = slowness[stage % self.processes] * (work[stop] - work[first])
            return own + (loss_s if stage == last else 0.0)

        layers = best_layers(len(seconds), len(self.layers), taken)
        if layers is None or layers == self.layers or not self._fits(layers, room):
            return None
        before, after = (
            [taken(stage, one.start, one.stop) for stage, one in enumerate(stages)]
            for stages in (self._stages, ranges_of(layers))
        )
        # What of a step is not in the stages stays as it is.
        predicted_s = self._step(after) + max(0.0, step_s - self._step(before))
        gain_s = step_s - predicted_s
        if gain_s < LEAST_GAIN * step_s or gain_s * steps_left <= told[0].move_s:
            return None
        self._forget()
        longest = before.index(max(before))
        why = (
            f"a micro-batch takes {_listed(before)} in the stages (measured), {_listed(after)} are reckoned; a step of "
            f"{step_s:.3g} s is predicted to take {predicted_s:.3g} s, {gain_s / step_s:.0%} less"
        )
        return Move(layers, longest, self._words(layers), why, step_s, predicted_s)

    def _slowness(self, seconds: Sequence[float]) -> list[float]:
        """Of each process, 1 where nothing tells it from the fastest."""
        by_kind: dict[tuple[float, float], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for place, home in enumerate(self._home):
            by_kind[self.blocks.kind(place)][home].append(seconds[place])
        times = [{home: median(own) for home, own in one.items()} for one in by_kind.values() if len(one) > 1]
        ratios: list[list[float]] = [[] for _ in range(self.processes)]
        for one in times:
            least = min(one.values())
            for home, own in one.items() if least > 0 else ():
                ratios[home].append(own / least)
        return [median(own) if own else 1.0 for own in ratios]

    def _step(self, stages: Sequence[float]) -> float:
        """Seconds of the stages' part of a step: m · longest + (sum - longest) / chunks, over processes."""
        assert self._size is not None
        of_process = [sum(stages[process :: self.processes]) for process in range(self.processes)]
        longest, chunks = max(of_process), len(stages) // self.processes
        return self._size[0] * longest + (sum(of_process) - longest) / chunks

    def _room(self, told: Sequence[Told]) -> list[float]:
        """Bytes that each process may still take, those of its rank that has least; infinite where nobody knows."""
        data = len(told) // self.processes
        rooms = [
            (1 - SHORT) * one.limit_bytes - one.peak_bytes if one.limit_bytes else math.inf for one in told
        ]
        return [max(0.0, min(rooms[start : start + data])) for start in range(0, len(told), data)]

    def _added_bytes(self, stage: int, first: int, stop: int) -> float:
        """The most that blocks add to a stage's device that are not on it yet."""
        assert self._size is not None
        micro_batches, samples = self._size
        # Later stages have fewer micro-batches under way; with chunks it may be all of them.
        plain = len(self.layers) == self.processes
        under_way = min(micro_batches, self.processes - stage) if plain else micro_batches
        process = stage % self.processes
        return sum(
            self.blocks.most_bytes(place, under_way * samples)
            for place in range(first, stop)
            if self._home[place] != process
        )

    def _fits(self, layers: Sequence[int], room: Sequence[float]) -> bool:
        """Whether the chunks of each process fit together."""
        added = [0.0] * self.processes
        for stage, places in enumerate(ranges_of(layers)):
            added[stage % self.processes] += self._added_bytes(stage, places.start, places.stop)
        return all(one <= most for one, most in zip(added, room, strict=True))

    def _words(self, layers: Sequence[int]) -> str:
        """Which blocks go from which stage to which."""
        ways = [
            (before, after) for before, after in zip(_stage_of(self.layers), _stage_of(layers), strict=True)
        ]
        moves = []
        for (before, after), places in groupby(range(len(ways)), key=ways.__getitem__):
            if before != after:
                found = [*places]
                names = self.blocks.words(range(found[0], found[-1] + 1))
                moves.append(f"{names} from stage {before} to stage {after}")
        return ", ".join(moves)


def _stage_of(layers: Sequence[int]) -> list[int]:
    return [stage for stage, count in enumerate(layers) for _ in range(count)]


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{one:.3g}" for one in seconds) + " s"
