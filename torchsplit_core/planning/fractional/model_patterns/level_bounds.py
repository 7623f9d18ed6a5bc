"""A bound of the worst-served model with shared slices: levels refuted by prices of what whole models take.

First for all options together (level_program.py), the lowest refuted level by halves. What remains above the truth is
mostly that a model mixes options, the quick points of one with the small shares of another. So levels below are refuted
in boxes: where the linear program has a solution, a model that mixes options has them in one of two ranges. The boxes
that refuted a level are where the next lower one begins.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise

from torchsplit_core.planning.fractional.model_patterns.level_program import LevelProgram, ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.patterns import Box, Vector
from torchsplit_core.planning.fractional.targets import level_rates
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.timing import partial_deadline

LEVEL_STEP = 1e-3
"""Relative distance of two levels at which the search for the lowest refuted one ends."""

TRY_SHARE = 0.5
"""Part of the remaining time for a level in boxes."""

BOX_STEP, LEAST_BOX_STEP = 0.2, 0.02
"""Parts of what is between bound and plan by which boxes lower the bound at a time, first and last."""

DISTANCE = 0.05
"""Added to the distance of two least shares when an option is chosen to divide a model's range at."""


def positive_rates(problem: Problem, level: float) -> dict[int, float]:
    """The rates of a level (requests/s by model), without models that need nothing there."""
    return {model: rate for model, rate in level_rates(problem, level).items() if rate > 0}


def bound_level(patterns: ModelPatterns, reached: float, known_bound: float, deadline: float) -> float:
    """The lowest level refuted by the deadline (time.perf_counter), or `known_bound`; a plan has `reached`."""
    if not math.isfinite(known_bound) or known_bound - reached <= LEVEL_STEP * known_bound:
        return known_bound
    if not patterns.is_complete:
        return known_bound
    low, high, prices = reached, known_bound, patterns.first_prices()
    # Where no level above 0 is possible, halving would not end.
    while high - low > LEVEL_STEP * max(high, LEVEL_STEP * known_bound) and time.perf_counter() < deadline:
        level = (low + high) / 2
        program = LevelProgram(patterns, positive_rates(patterns.problem, level))
        refuted, prices = patterns.refute(program, patterns.whole_box, prices, deadline)
        low, high = (low, level) if refuted else (level, high)
    return high


def bound_boxes(patterns: ModelPatterns, reached: float, known_bound: float, deadline: float) -> float:
    """`known_bound`, lowered in boxes until the deadline (time.perf_counter); a plan has `reached`."""
    between = known_bound - reached
    if not patterns.is_complete or not math.isfinite(between):
        return known_bound
    boxes = [(patterns.whole_box, patterns.first_prices())]
    step = BOX_STEP
    while (
        step >= LEAST_BOX_STEP
        and known_bound - reached > LEVEL_STEP * reached
        and time.perf_counter() < deadline
    ):
        level = max(known_bound - step * between, reached * (1 + LEVEL_STEP))
        search = _BoxSearch(patterns, level, boxes)
        # Half of the time: where a level is out of reach, a higher one may not be.
        if search.refute(partial_deadline(deadline, TRY_SHARE)):
            known_bound, boxes = level, search.refuted
        else:
            step /= 2
    return known_bound


@dataclass
class _BoxSearch:
    """Whether a level is refuted in each of some boxes, with the prices to begin with; `refuted` are the boxes that
    do so."""

    patterns: ModelPatterns
    level: float
    boxes: list[tuple[dict[int, tuple[int, int]], Vector]]
    refuted: list[tuple[dict[int, tuple[int, int]], Vector]] = field(default_factory=list)

    def refute(self, deadline: float) -> bool:
        """False: time is up, or a box with one option a model has a solution."""
        program = LevelProgram(self.patterns, positive_rates(self.patterns.problem, self.level))
        stack = list(self.boxes)
        while stack:
            box, prices = stack.pop()
            refuted, prices = self.patterns.refute(program, box, prices, deadline)
            if refuted:
                self.refuted.append((box, prices))
                continue
            if time.perf_counter() > deadline:
                return False
            division = divide(self.patterns, box, program.weights())
            if division is None:
                return False
            model, option = division
            first, end = box[model]
            stack += [({**box, model: (first, option)}, prices), ({**box, model: (option, end)}, prices)]
        return True


def divide(patterns: ModelPatterns, box: Box, weights: dict[int, dict[int, float]]) -> tuple[int, int] | None:
    """The model to divide, and the first option of its upper range: where a mix is most even and widest.

    `weights`: by model and option the parts of its patterns in a solution. None: every model has one option.
    """

    def distance(model: int, lower: int, upper: int) -> float:
        options = patterns.options[model]
        return abs(options[upper].stages[0].least - options[lower].stages[0].least)

    best: tuple[float, int, int] | None = None
    for model, by_option in weights.items():
        used, total, below = sorted(by_option), sum(by_option.values()), 0.0
        for lower, upper in pairwise(used):
            below += by_option[lower]
            evenness = min(below, total - below) / total
            score = evenness * (DISTANCE + distance(model, lower, upper))
            if best is None or score > best[0]:
                best = score, model, (lower + upper + 1) // 2
    if best is not None:
        return best[1:]
    # Nobody mixes: the widest range, beside the option in use.
    wide = [model for model in weights if box[model][1] - box[model][0] > 1]
    if not wide:
        return None
    model = max(wide, key=lambda number: distance(number, box[number][0], box[number][1] - 1))
    first, end = box[model]
    return model, min(max(next(iter(weights[model])), first + 1), end - 1)
