"""Blocks of a pipeline that move to other stages by measured seconds, seldom: pure, of the figures that it is told."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from torchsplit_core.running.adapt.memory import SHORT
from torchsplit_core.running.adapt.speed import LEAST_GAIN, STEPS
from torchsplit_core.running.adapt.stages import Measured
from torchsplit_core.running.adapt.told import Told
from torchsplit_core.running.staged.blocks import Blocks


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
    micro-batch, forward and backward, on its slowest rank, the median of five steps.
    """

    def __init__(self, blocks: Blocks, layers: Sequence[int], processes: int) -> None:
        self.blocks, self.layers, self.processes = blocks, tuple(layers), processes
        self._seconds: deque[tuple[float, ...]] = deque(maxlen=STEPS)
        self._steps: deque[float] = deque(maxlen=STEPS)
        self._heard = 0
        self._size = 0, 0
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
        now = self._measured(told)
        before = now.stages_s(self.layers)
        # What of a step is not in the stages stays as it is.
        rest_s = max(0.0, step_s - now.passes_s(before))

        def pays(passes_s: float) -> bool:
            gain_s = step_s - rest_s - passes_s
            return gain_s >= LEAST_GAIN * step_s and gain_s * steps_left > told[0].move_s

        # A long chain is not searched in vain.
        layers = now.best() if pays(now.least_passes_s) else None
        if layers is None:
            return None
        after = now.stages_s(layers)
        predicted_s = rest_s + now.passes_s(after)
        if not pays(now.passes_s(after)):
            return None
        self._forget()
        why = (
            f"a micro-batch takes {_listed(before)} in the stages (measured), {_listed(after)} are reckoned; a step of "
            f"{step_s:.3g} s is predicted to take {predicted_s:.3g} s, {1 - predicted_s / step_s:.0%} less"
        )
        longest = before.index(max(before))
        return Move(layers, longest, self._words(layers), why, step_s, predicted_s)

    def _measured(self, told: Sequence[Told]) -> Measured:
        *seconds, loss_s = [median(one) for one in zip(*self._seconds, strict=True)]
        room = [
            (1 - SHORT) * one.limit_bytes - one.peak_bytes if one.limit_bytes else math.inf for one in told
        ]
        data = len(told) // self.processes
        least = tuple(max(0.0, min(room[start : start + data])) for start in range(0, len(told), data))
        return Measured(self.blocks, self.layers, self.processes, tuple(seconds), loss_s, *self._size, least)

    def _words(self, layers: Sequence[int]) -> str:
        """Which blocks go from which stage to which."""
        ways = [*zip(_stage_of(self.layers), _stage_of(layers), strict=True)]
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
