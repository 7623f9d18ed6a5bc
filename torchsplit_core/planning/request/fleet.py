"""The fleet GPU by GPU: ids, offered layouts, costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchsplit_core.values import FleetEntry


@dataclass(frozen=True, slots=True)
class FleetGpu:
    """One GPU of the fleet; `layouts` None means every legal layout of the plain profiles."""

    id: str
    type: str
    layouts: tuple[tuple[str, ...], ...] | None
    cost: float
    node: str | None = None


def list_gpus(entries: Iterable[FleetEntry]) -> tuple[FleetGpu, ...]:
    """Every GPU in the order of the request; those without an id become gpu0, gpu1, …

    A number already taken by a given id is passed over.
    """
    taken = {entry.id for entry in entries if entry.id is not None}
    found: list[FleetGpu] = []
    number = 0
    for entry in entries:
        layouts = None
        if entry.layouts is not None:
            layouts = tuple(sorted({tuple(sorted(layout)) for layout in entry.layouts}))
        for _ in range(entry.count):
            name = entry.id
            if name is None:
                while f"gpu{number}" in taken:
                    number += 1
                name = f"gpu{number}"
                number += 1
            found.append(FleetGpu(name, entry.type, layouts, entry.cost, entry.node))
    return tuple(found)
