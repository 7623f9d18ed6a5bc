"""The vocabulary of plans by hand: what a person puts where, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.planning.fleet import FleetGpu
from torchsplit_core.values import Point, Stage, Variant


@dataclass(frozen=True, slots=True)
class HandTenant:
    """A model on a slice; None for what is to be chosen."""

    model: str
    variant: str | None = None
    stage: str | None = None
    batch_size: int | None = None
    processes: int | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class HandSlice:
    """A slice at its first memory slot, with those who use it."""

    profile: str
    start: int
    tenants: tuple[HandTenant, ...] = ()


@dataclass(frozen=True, slots=True)
class HandGpu:
    """A GPU of the fleet, by its id, as a person wants it."""

    id: str
    slices: tuple[HandSlice, ...] = ()


@dataclass(frozen=True, slots=True)
class HandFault:
    """One thing wrong with a plan by hand. `gpu`, `slice` ("3g.40gb at 0") and `model` say where, as far as
    they apply; the rest is as in InputFault."""

    gpu: str | None
    slice: str | None
    model: str | None
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.gpu, self.slice, self.model) if part is not None)
        return f"{where}: {self.value} — {self.rule}. {self.remedy}"


@dataclass
class HandSeat:
    """A tenant on its way to a point: what was asked for, and what was chosen by now."""

    gpu: FleetGpu
    profile: str
    start: int
    asked: HandTenant
    share: float
    variant: Variant | None = None
    stage: Stage | None = None
    point: Point | None = None

    def fault(self, value: object, rule: str, remedy: str) -> HandFault:
        """A fault of this tenant."""
        return HandFault(
            self.gpu.id, place(self.profile, self.start), self.asked.model, str(value), rule, remedy
        )


def place(profile: str, start: int) -> str:
    """How a slice is named in faults."""
    return f"{profile} at {start}"
