"""The published formulation unchanged, in Pyomo: the reference, and the answer to "show me the model".

An allocation a is a segment of layers on particular GPUs that memory permits; a connection (a, b) joins it to an
allocation that begins with the next layer, on other GPUs and over a link above 0. v are their throughputs, computed
beforehand; M is the largest v[a], which no plan exceeds. docs/internals/formulations.md has the same table.

| family | formula | function |
|---|---|---|
| layer_coverage | Σ_a∋ℓ z[a] = 1 for every layer ℓ | add_allocation_choice |
| gpu_exclusivity | Σ_a∋g z[a] ≤ 1 for every GPU g | add_allocation_choice |
| pipeline_start | Σ_a z[a] ≥ 1 over those that begin with the first layer | add_allocation_choice |
| pipeline_end | Σ_a z[a] ≥ 1 over those that end with the last layer | add_allocation_choice |
| connected_onward | Σ_b e[a,b] ≥ z[a] for every a that ends before the last layer | add_connectivity |
| connected_back | Σ_a e[a,b] ≥ z[b] for every b that begins after the first layer | add_connectivity |
| connection_from | e[a,b] ≤ z[a] | add_connectivity |
| connection_to | e[a,b] ≤ z[b] | add_connectivity |
| allocation_throughput | τ[a] = v[a] · z[a] | add_throughputs |
| connection_throughput | ρ[a,b] = v[a,b] · e[a,b] | add_throughputs |
| end_to_end_allocation | t ≤ τ[a] + M · (1 − z[a]) | add_throughputs |
| end_to_end_connection | t ≤ ρ[a,b] + M · (1 − e[a,b]) | add_throughputs |

maximise t; z, e ∈ {0, 1}; τ, ρ, t ≥ 0. Nothing is added to the text: no symmetry broken, no dominated allocation
dropped.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from torchsplit_core.placement.literal.size import literal_size
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.solver.pyomo_model import pyo
from torchsplit_core.values import InputFault

MOST_ALLOCATIONS, MOST_CONNECTIONS = 200_000, 1_000_000
"""Larger programs are refused before they are built: Pyomo would need many GiB."""


class BuildTimeout(Exception):
    """The deadline passed while the program was being built."""


class NoFeasibleAllocation(Exception):
    """No segment fits on any set of GPUs."""


@dataclass(frozen=True)
class Allocation:
    """Layers `start` to `end` (from 1, both included) on the GPUs with these indices."""

    start: int
    end: int
    gpus: tuple[int, ...]
    throughput: float


@dataclass(frozen=True)
class Connection:
    """From one allocation to the next, by their indices in the list."""

    source: int
    target: int
    throughput: float


@dataclass(frozen=True)
class LiteralProgram:
    """The Pyomo model with the meaning of its indices. `variables` counts all of z, e, τ, ρ and t."""

    model: Any
    layers: int
    allocations: tuple[Allocation, ...]
    connections: tuple[Connection, ...]

    @property
    def variables(self) -> int:
        return 2 * len(self.allocations) + 2 * len(self.connections) + 1


def list_allocations(instance: ProblemInstance) -> tuple[Allocation, ...]:
    """Every segment on every set of GPUs that holds it. Raises InputFault if there are too many to build."""
    gpus = len(instance.kinds)
    check_size(instance)
    allocations = []
    for length in range(1, instance.layers + 1):
        for size in range(1, instance.max_gpus + 1):
            for chosen in combinations(range(gpus), size):
                value = instance.value(tuple(sorted(instance.kinds[g] for g in chosen)), length)
                if value <= 0:
                    continue
                allocations += [
                    Allocation(start, start + length - 1, chosen, value)
                    for start in range(1, instance.layers - length + 2)
                ]
        if len(allocations) > MOST_ALLOCATIONS:
            raise _too_large(f"more than {MOST_ALLOCATIONS} allocations")
    return tuple(sorted(allocations, key=lambda a: (a.start, a.end, len(a.gpus), a.gpus)))


def check_size(instance: ProblemInstance) -> None:
    """Raise InputFault with the size of a program that is too large, before anything is built."""
    size = literal_size(instance)
    if size is not None:
        # Links of 0 only make it smaller, which shows when it is built.
        if size.allocations > MOST_ALLOCATIONS or (size.exact and size.connections > MOST_CONNECTIONS):
            raise _too_large(size.describe())
        return
    gpus, layers = len(instance.kinds), instance.layers
    sets = sum(math.comb(gpus, count) for count in range(1, instance.max_gpus + 1))
    if sets * layers > MOST_ALLOCATIONS:
        raise _too_large(f"{sets * layers * (layers + 1) // 2:,} allocations to look at")


def list_connections(
    instance: ProblemInstance, allocations: tuple[Allocation, ...], deadline: float
) -> tuple[Connection, ...]:
    """Every pair that may follow one another; its throughput is the least link between the two sets."""
    beginning: dict[int, list[int]] = {}
    for index, allocation in enumerate(allocations):
        beginning.setdefault(allocation.start, []).append(index)
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    links = instance.links.tolist()
    connections = []
    for source, first in enumerate(allocations):
        if time.perf_counter() > deadline:
            raise BuildTimeout
        for target in beginning.get(first.end + 1, ()):
            pair = (first.gpus, allocations[target].gpus)
            if pair not in known:
                apart = not set(pair[0]) & set(pair[1])
                known[pair] = min(links[i][j] for i in pair[0] for j in pair[1]) if apart else 0.0
            if known[pair] > 0:
                connections.append(Connection(source, target, known[pair]))
        if len(connections) > MOST_CONNECTIONS:
            raise _too_large(f"more than {MOST_CONNECTIONS} connections")
    return tuple(connections)


def _too_large(what: str) -> InputFault:
    return InputFault(
        "solver.method",
        f"the literal program would have {what}; it is built for at most {MOST_ALLOCATIONS:,} allocations and "
        f"{MOST_CONNECTIONS:,} connections",
        "Use the method exact, which proves the same optimum.",
    )


def build_program(instance: ProblemInstance, deadline: float = math.inf) -> LiteralProgram:
    """The whole program.

    Raises InputFault if it is too large, BuildTimeout past `deadline` (perf_counter), and NoFeasibleAllocation without
    any allocation. With one, every layer is in some, because a segment's position does not matter to its GPUs.
    """
    allocations = list_allocations(instance)
    if not allocations:
        raise NoFeasibleAllocation
    connections = list_connections(instance, allocations, deadline)
    model = pyo.ConcreteModel()
    indices, pairs = range(len(allocations)), [(c.source, c.target) for c in connections]
    model.z = pyo.Var(indices, domain=pyo.Binary)
    model.e = pyo.Var(pairs, domain=pyo.Binary)
    model.tau = pyo.Var(indices, domain=pyo.NonNegativeReals)
    model.rho = pyo.Var(pairs, domain=pyo.NonNegativeReals)
    model.t = pyo.Var(domain=pyo.NonNegativeReals)
    built = LiteralProgram(model, instance.layers, allocations, connections)
    for add in (add_allocation_choice, add_connectivity, add_throughputs):
        if time.perf_counter() > deadline:
            raise BuildTimeout
        add(built)
    model.end_to_end = pyo.Objective(expr=model.t, sense=pyo.maximize)
    return built


def add_allocation_choice(built: LiteralProgram) -> None:
    """Every layer once, every GPU at most once, a first and a last segment."""
    model, allocations = built.model, built.allocations
    covering: dict[int, list[Any]] = {layer: [] for layer in range(1, built.layers + 1)}
    holding: dict[int, list[Any]] = {}
    for index, a in enumerate(allocations):
        for layer in range(a.start, a.end + 1):
            covering[layer].append(model.z[index])
        for gpu in a.gpus:
            holding.setdefault(gpu, []).append(model.z[index])
    model.layer_coverage = pyo.Constraint(list(covering), rule=lambda _, layer: sum(covering[layer]) == 1)
    model.gpu_exclusivity = pyo.Constraint(sorted(holding), rule=lambda _, gpu: sum(holding[gpu]) <= 1)
    first = [model.z[index] for index, a in enumerate(allocations) if a.start == 1]
    last = [model.z[index] for index, a in enumerate(allocations) if a.end == built.layers]
    model.pipeline_start = pyo.Constraint(expr=sum(first) >= 1)
    model.pipeline_end = pyo.Constraint(expr=sum(last) >= 1)


def add_connectivity(built: LiteralProgram) -> None:
    """Neighbouring segments are connected, and only chosen ones are."""
    model, allocations = built.model, built.allocations
    onward: dict[int, list[Any]] = {p: [] for p, a in enumerate(allocations) if a.end < built.layers}
    back: dict[int, list[Any]] = {p: [] for p, a in enumerate(allocations) if a.start > 1}
    for c in built.connections:
        onward[c.source].append(model.e[c.source, c.target])
        back[c.target].append(model.e[c.source, c.target])
    model.connected_onward = pyo.Constraint(list(onward), rule=lambda m, a: sum(onward[a]) >= m.z[a])
    model.connected_back = pyo.Constraint(list(back), rule=lambda m, b: sum(back[b]) >= m.z[b])
    pairs = list(model.e)
    model.connection_from = pyo.Constraint(pairs, rule=lambda m, a, b: m.e[a, b] <= m.z[a])
    model.connection_to = pyo.Constraint(pairs, rule=lambda m, a, b: m.e[a, b] <= m.z[b])


def add_throughputs(built: LiteralProgram) -> None:
    """What is chosen has its throughput, and the pipeline at most the least of them."""
    model = built.model
    value = [a.throughput for a in built.allocations]
    link = {(c.source, c.target): c.throughput for c in built.connections}
    most = max(value, default=0.0)
    indices, pairs = range(len(value)), list(link)
    model.allocation_throughput = pyo.Constraint(indices, rule=lambda m, a: m.tau[a] == value[a] * m.z[a])
    model.connection_throughput = pyo.Constraint(
        pairs, rule=lambda m, a, b: m.rho[a, b] == link[a, b] * m.e[a, b]
    )
    model.end_to_end_allocation = pyo.Constraint(
        indices, rule=lambda m, a: m.t <= m.tau[a] + most * (1 - m.z[a])
    )
    model.end_to_end_connection = pyo.Constraint(
        pairs, rule=lambda m, a, b: m.t <= m.rho[a, b] + most * (1 - m.e[a, b])
    )
