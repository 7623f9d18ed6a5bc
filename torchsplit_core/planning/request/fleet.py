"""The fleet GPU by GPU: ids, given layouts, costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from torchsplit_core.hardware import catalogue, without_mig
from torchsplit_core.values import WHOLE_GPU, FleetEntry, point_type
from torchsplit_core.values.plan.request import MigMode

Layouts = tuple[tuple[str, ...], ...]

UNPARTITIONED: Layouts = ((WHOLE_GPU,),)
"""The layouts of a GPU that is left whole: itself as the only slice."""


@dataclass(frozen=True, slots=True)
class FleetGpu:
    """One GPU of the fleet.

    `layouts`: None for every legal layout of the plain profiles, UNPARTITIONED if it is left whole. `either`: MIG cuts
    it into one of these, or it is left whole.
    """

    id: str
    type: str
    layouts: Layouts | None
    price: float | None
    node: str | None = None
    either: bool = False

    @property
    def cost(self) -> float:
        """The cost under min_gpus: its price, 1 without one."""
        return objective_cost(self.price)

    @property
    def whole(self) -> bool:
        """Whether it is left whole."""
        return self.layouts == UNPARTITIONED

    @property
    def can_be_whole(self) -> bool:
        """Whether a plan may have it without MIG."""
        return self.whole or self.either

    def entry(self, layouts: Layouts | None = None, *, id: str | None = None) -> FleetEntry:
        """This GPU as an entry of a request, with other layouts if given, and without its id unless given."""
        if self.whole:
            return FleetEntry(self.type, id, cost=self.price, node=self.node, mig=False)
        mig: MigMode = "either" if self.either else True
        return FleetEntry(self.type, id, 1, layouts or self.layouts, self.price, self.node, mig)


def objective_cost(price: float | None) -> float:
    """The cost of a GPU of this price under min_gpus."""
    return 1.0 if price is None else price


def is_unpartitioned(entry: FleetEntry) -> bool:
    """Whether GPUs of the entry are left whole: without MIG, or with MIG off."""
    return entry.type in without_mig() or (not entry.mig and entry.type in catalogue())


def list_gpus(entries: Iterable[FleetEntry]) -> tuple[FleetGpu, ...]:
    """Every GPU in the order of the request; those without an id become gpu0, gpu1, … (hosts cpu0, cpu1, …).

    Skips numbers that a given id has taken.
    """
    taken = {entry.id for entry in entries if entry.id is not None}
    gpus: list[FleetGpu] = []
    numbers = {"gpu": count(), "cpu": count()}
    for entry in entries:
        layouts = UNPARTITIONED if is_unpartitioned(entry) else None
        either = layouts is None and entry.mig == "either"
        if layouts is None and entry.layouts is not None:
            layouts = tuple(sorted({tuple(sorted(layout)) for layout in entry.layouts}))
        for _ in range(entry.count):
            name = entry.id
            if name is None:
                kind = "gpu" if point_type(entry.type) == entry.type else "cpu"
                name = next(free for number in numbers[kind] if (free := f"{kind}{number}") not in taken)
            gpus.append(FleetGpu(name, entry.type, layouts, entry.cost, entry.node, either))
    return tuple(gpus)
