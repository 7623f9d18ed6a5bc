"""The result of `prepare`: units that cutting never divides, and the values they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from torchsplit_core.graph.preparation.steps import ALL_STEPS, StepName
from torchsplit_core.graph.torch_graph import TorchGraph

UnitKind: TypeAlias = Literal["input", "op", "constant", "weight"]
WEIGHT_KINDS = frozenset({"parameter", "buffer", "constant"})


@dataclass(frozen=True, slots=True)
class Unit:
    """Original nodes that stay together, in execution order; `id` is that of the node the others joined.

    `weight_bytes`: the distinct parameters, buffers and constants read. `output_bytes`: the distinct values that other
    units or the output read, at the traced batch. A unit is a "weight" only without the step "weights", alone and
    without weight bytes.
    """

    id: str
    members: tuple[str, ...]
    kind: UnitKind
    weights: tuple[str, ...]
    weight_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class ValueEdge:
    """Unit `target` reads the value of original node `value`, which unit `source` computes."""

    value: str
    source: str
    target: str


@dataclass(frozen=True)
class PreparedGraph:
    """Units in topological order, and the values they read.

    `sideband`: unit ids that no cut counts; `results`: the units whose values the output reads; `dead`: the original
    operations that no output needs, in execution order; `steps`: those taken, in order.
    """

    graph: TorchGraph
    units: tuple[Unit, ...]
    edges: tuple[ValueEdge, ...]
    sideband: frozenset[str]
    results: tuple[str, ...]
    dead: tuple[str, ...]
    steps: tuple[StepName, ...] = ALL_STEPS

    @cached_property
    def by_id(self) -> Mapping[str, Unit]:
        """Every unit under its id."""
        return {unit.id: unit for unit in self.units}

    @cached_property
    def unit_of(self) -> Mapping[str, str]:
        """The unit of every original node that has one."""
        return {member: unit.id for unit in self.units for member in unit.members}

    @cached_property
    def main_ids(self) -> tuple[str, ...]:
        """The units that cuts divide: all but the side-band, in topological order."""
        return tuple(unit.id for unit in self.units if unit.id not in self.sideband)

    @cached_property
    def main_edges(self) -> tuple[tuple[str, str], ...]:
        """(source, target) between units that cuts divide, each pair once."""
        pairs = ((edge.source, edge.target) for edge in self.edges)
        return tuple(
            dict.fromkeys(p for p in pairs if p[0] not in self.sideband and p[1] not in self.sideband)
        )
