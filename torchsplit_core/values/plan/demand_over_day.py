"""How a model's demand varies over the day: windows of times of day, with a rate each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.fields import Added, Amount, FileField, Length, Name

DAY_MINUTES = 24 * 60
TIME_OF_DAY = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
TimeOfDay = Annotated[str, Length(pattern=TIME_OF_DAY)]
"""HH:MM in UTC; 24:00 is 00:00."""

WindowRate = Literal["mean", "p95"]
"""One of the two rates of a window that has both."""


@dataclass(frozen=True, slots=True)
class DemandLevels:
    """Requests/s of a window: their mean, and the rate that 95 % of its hours do not exceed."""

    mean: Amount
    p95: Amount


@dataclass(frozen=True, slots=True)
class DemandWindow:
    """From `start` up to `end`, which may lie beyond midnight; equal ones are a whole day.

    `min_throughput_rps` None: the model's own. A demand of 0: nothing is asked for in this window.
    """

    name: Name
    start: Annotated[TimeOfDay, FileField(key="from")]
    end: Annotated[TimeOfDay, FileField(key="to")]
    demand_rps: Amount | DemandLevels
    min_throughput_rps: Added[Amount | None] = None

    def rate_rps(self, at: WindowRate) -> float:
        """Its demand where it has one, else that of its two."""
        demand = self.demand_rps
        if not isinstance(demand, DemandLevels):
            return demand
        return demand.mean if at == "mean" else demand.p95

    @property
    def hours(self) -> float:
        """How long it is."""
        return self.minutes[1] / 60

    @property
    def minutes(self) -> tuple[int, int]:
        """The first minute of the day, and the number of minutes."""
        first, beyond = (int(text[:2]) * 60 + int(text[3:]) for text in (self.start, self.end))
        return first % DAY_MINUTES, (beyond - first) % DAY_MINUTES or DAY_MINUTES
