"""Differences of two plans: of slices, GPUs and models, and what must be drained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchsplit_core.values import PlannedModel, Tenant


@dataclass(frozen=True, slots=True)
class SliceChange:
    """A slice of a pair of GPUs. `leaving` tenants end there, `arriving` begin, and `reshared` stay with another
    share of it (as in the new plan)."""

    change: Literal["new", "gone", "kept"]
    profile: str
    start: int
    before: tuple[Tenant, ...] = ()
    after: tuple[Tenant, ...] = ()
    leaving: tuple[Tenant, ...] = ()
    arriving: tuple[Tenant, ...] = ()
    reshared: tuple[Tenant, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything on it changes."""
        return self.change != "kept" or bool(self.leaving or self.arriving or self.reshared)


@dataclass(frozen=True, slots=True)
class GpuChange:
    """A GPU by its ids in both plans; None if the other plan has no GPU to match."""

    type: str
    before_id: str | None
    after_id: str | None
    slices: tuple[SliceChange, ...]

    @property
    def changed(self) -> bool:
        """Whether it is added or removed, or any slice of it changes."""
        return None in (self.before_id, self.after_id) or any(item.changed for item in self.slices)


@dataclass(frozen=True, slots=True)
class ModelChange:
    """What a model gets in both plans; None if a plan has no such model.

    Differences are after − before; `relative` is the throughput's, None from 0; `latency_ms` is None if one
    of the plans has none.
    """

    name: str
    before: PlannedModel | None
    after: PlannedModel | None
    direction: Literal["gains", "loses", "same", "new", "gone"]
    throughput_rps: float | None = None
    relative: float | None = None
    normalised: float | None = None
    latency_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Tenants of a slice of the running plan that must end before it is changed."""

    gpu_id: str
    profile: str
    start: int
    tenants: tuple[Tenant, ...]
    slice_removed: bool
