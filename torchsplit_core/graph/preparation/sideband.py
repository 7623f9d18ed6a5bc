"""The side-band of a prepared graph: values shipped beside every cut instead of counting as live.

Two kinds of units: constants with several readers, and small values that only depend on inputs, not on parameters
(attention masks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from torchsplit_core.graph.preparation.prepared import Unit, ValueEdge
from torchsplit_core.graph.torch_graph import TorchGraph


def find_sideband(
    graph: TorchGraph, units: Sequence[Unit], edges: Sequence[ValueEdge], limit_bytes: float | None = None
) -> frozenset[str]:
    """Units shipped beside every cut: constants with several readers, and small masks of the inputs.

    Such a mask has only side-band predecessors, none of them a parameter, at least two readers outside the side-band,
    and at most `limit_bytes`; by default the median output of the units that read parameters (a mask as large as the
    hidden state is not small). A graph without parameters has no masks. If weights are units (see `steps`), a constant
    that reads a parameter has a live predecessor and stays, and a small buffer is such a value itself. Time is linear
    in units and edges.
    """
    nodes = graph.by_id
    index_of = {unit.id: i for i, unit in enumerate(units)}
    reads_parameter = [any(nodes[w].kind == "parameter" for w in unit.weights) for unit in units]
    if any(unit.kind == "weight" for unit in units):
        for i, unit in enumerate(units):
            reads_parameter[i] = nodes[unit.id].kind == "parameter"
        for edge in edges:
            if nodes[edge.source].kind == "parameter":
                reads_parameter[index_of[edge.target]] = True
    sizes = [
        unit.output_bytes
        for unit, reads in zip(units, reads_parameter, strict=True)
        if reads and unit.kind == "op" and unit.output_bytes
    ]
    if limit_bytes is None:
        limit_bytes = median(sizes) if sizes else -1.0
    before: list[list[int]] = [[] for _ in units]
    for edge in edges:
        before[index_of[edge.target]].append(index_of[edge.source])
    constants = {i for i, unit in enumerate(units) if unit.kind == "constant"}
    candidates = set(constants)
    if sizes:
        for i, reads in enumerate(reads_parameter):
            if not reads and candidates.issuperset(before[i]):
                candidates.add(i)
    read = {i: set(before[i]) for i in candidates}
    readers: dict[int, set[int]] = {i: set() for i in candidates}
    for edge in edges:
        source = index_of[edge.source]
        if source in candidates:
            readers[source].add(index_of[edge.target])
    large = {i for i in candidates - constants if units[i].output_bytes > limit_bytes}
    return frozenset(units[i].id for i in _prune_candidates(candidates, constants, large, read, readers))


def _prune_candidates(
    candidates: set[int],
    constants: set[int],
    large: set[int],
    read: Mapping[int, set[int]],
    readers: Mapping[int, set[int]],
) -> set[int]:
    """Round by round, the candidates that stay, by their position in topological order.

    A round first keeps those that read only candidates and, if large, have only candidates as readers. Of these it
    takes the useful ones: constants, those with at least two readers that are not kept, and those with a useful reader.
    They are the candidates of the next round, until none is lost. After the first round only the neighbours of lost
    ones are checked, by counts of their readers, so all rounds together are linear.
    """
    eligible = {
        i for i in candidates if read[i] <= candidates and (i not in large or readers[i] <= candidates)
    }
    outside = {i: sum(j not in eligible for j in readers[i]) for i in eligible}
    useful: set[int] = set()
    useful_readers = dict.fromkeys(eligible, 0)  # number of useful readers
    for i in sorted(eligible, reverse=True):
        if i in constants or outside[i] > 1 or useful_readers[i]:
            useful.add(i)
            for j in read[i] & eligible:
                useful_readers[j] += 1
    removed, newly_useless = candidates - useful, eligible - useful
    while removed:
        failing = {j for i in removed for j in readers[i] & useful}
        failing |= {j for i in removed for j in read[i] & useful & large}
        useful -= failing
        for i in newly_useless | failing:  # outside from now on
            for j in read[i] & useful:
                outside[j] += 1
        shrunk = [(i, j) for i in failing for j in read[i] & useful]
        newly_useless = set()
        while shrunk:
            _, j = shrunk.pop()
            useful_readers[j] -= 1
            if not useful_readers[j] and outside[j] <= 1 and j not in constants and j in useful:
                useful.discard(j)
                newly_useless.add(j)
                shrunk.extend((j, k) for k in read[j] & useful)
        removed = failing | newly_useless
    return useful
