"""A change of a day with its time and its files."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values import Transition


@dataclass(frozen=True, slots=True)
class ScheduledChange:
    """A change from one window's plan to the next one's. `begin_minute`: of the day, UTC; `folder` has its files."""

    before: str
    after: str
    begin_minute: int
    transition: Transition
    folder: str

    @property
    def clock(self) -> str:
        return f"{self.begin_minute // 60:02}:{self.begin_minute % 60:02}"

    @property
    def cron(self) -> str:
        """When it begins, every day, as cron writes it (UTC)."""
        return f"{self.begin_minute % 60} {self.begin_minute // 60} * * *"
