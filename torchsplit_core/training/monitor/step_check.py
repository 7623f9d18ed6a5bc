"""Compares a run's measured step with the interval that its strategy estimated, and says once if it lies outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

from torchsplit_core.values.strategy.run import PredictedStep

FIRST_STEPS, CHECKED_STEPS = 5, 15
"""Steps of an attempt: the first are slower, since torch allocates and compiles; of the next ones the median counts."""
GROUPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "forward and backward pass": (
        ("forward", "backward", "waiting for stages"),
        (
            "compute", "tensor_communication", "context_communication", "pipeline_bubble", "pipeline_communication",
            "data_communication",
        ),
    ),
    "optimizer": (("optimizer",), ("optimizer",)),
    "samples, and what the processes agree on": (("data", "agreement"), ("fixed",)),
}  # fmt: skip
"""What is compared: phases of the run with parts of the estimate."""


class StepCheck:
    """Collects the first steps of an attempt, and compares them once."""

    def __init__(self, predicted: PredictedStep | None) -> None:
        self.predicted = predicted
        self._steps: list[float] = []
        self._phases: dict[str, list[float]] = defaultdict(list)

    def add(self, seconds: float, phases_s: Mapping[str, float]) -> str | None:
        """Add a step with its phases; returns the message if the steps so far lie outside, otherwise None."""
        if self.predicted is None or self.predicted.low_s is None or self.predicted.high_s is None:
            return None
        self._steps.append(seconds)
        for name, spent in phases_s.items():
            self._phases[name].append(spent)
        if len(self._steps) != FIRST_STEPS + CHECKED_STEPS:
            return None
        measured = median(self._steps[FIRST_STEPS:])
        low, high = self.predicted.low_s, self.predicted.high_s
        if low <= measured <= high:
            return None
        side = "above" if measured > high else "below"
        return (
            f"a step takes {_ms(measured)}, {side} the estimated {_ms(low)} to {_ms(high)}"
            f"{self._largest_difference()}"
        )

    def _largest_difference(self) -> str:
        """What differs most, if the run knows its phases and the estimate its parts; otherwise empty."""
        assert self.predicted is not None
        parts, differences = self.predicted.parts_s, []
        for name, (phases, estimated) in GROUPS.items():
            known = [self._phases[phase][FIRST_STEPS:] for phase in phases if phase in self._phases]
            if known and parts:
                spent = sum(median(times) for times in known if times)
                wanted = sum(parts.get(part, 0.0) for part in estimated)
                differences.append((abs(spent - wanted), name, spent, wanted))
        if not differences:
            return ""
        _, name, spent, wanted = max(differences)
        return f"; most of the difference is {name}: {_ms(spent)}, where {_ms(wanted)} was estimated"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
