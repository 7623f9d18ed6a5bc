"""The side-band against its rounds taken one by one, and where each round would lose one value."""

import random
from statistics import median

import pytest

from tests.support.graph.cases import leaf, op, random_dag, series_parallel
from torchsplit_core.graph import TorchGraph, prepare
from torchsplit_core.graph.preparation.sideband import find_sideband
from torchsplit_core.values import GraphNode


def by_rounds(graph, units, edges, limit=None):
    """Every round looks at every unit again."""
    reads_parameter = {u.id for u in units if any(graph.by_id[w].kind == "parameter" for w in u.weights)}
    sizes = [u.output_bytes for u in units if u.id in reads_parameter and u.kind == "op" and u.output_bytes]
    limit = (median(sizes) if sizes else -1.0) if limit is None else limit
    before = {u.id: {e.source for e in edges if e.target == u.id} for u in units}
    after = {u.id: {e.target for e in edges if e.source == u.id} for u in units}
    constants = {u.id for u in units if u.kind == "constant"}
    candidates = set(constants)
    for u in units:
        if sizes and u.id not in reads_parameter and before[u.id] <= candidates:
            candidates.add(u.id)
    while True:
        kept = {
            u.id
            for u in units
            if u.id in candidates
            and before[u.id] <= candidates
            and (u.id in constants or after[u.id] <= candidates or u.output_bytes <= limit)
        }
        useful = set()
        for u in reversed(units):
            served = len(after[u.id] - kept) > 1 or after[u.id] & useful
            if u.id in kept and (u.id in constants or served):
                useful.add(u.id)
        if useful == candidates:
            return frozenset(useful)
        candidates = useful


def traced(seed, make):
    """A random graph of inputs, parameters, buffers and operations of random size."""
    rng = random.Random(seed)
    ids, edges = make(seed, 30)
    nodes = [leaf("w", "parameter"), leaf("c", "buffer")]
    for name in ids:
        inputs = [source for source, target in edges if target == name]
        inputs += [extra for extra, share in (("w", 0.12), ("c", 0.1)) if rng.random() < share]
        size = rng.choice((10, 100, 1000))
        target = rng.choice(("aten.relu.default", "aten.add.Tensor", "aten.view.default", "getitem"))
        nodes.append(op(name, *inputs, target=target, size=size) if inputs else leaf(name, "input", size))
    return TorchGraph(tuple(nodes))


@pytest.mark.parametrize("make", [random_dag, series_parallel])
def test_the_sideband_is_that_of_the_rounds(make):
    sizes = set()
    for seed in range(400):
        prepared = prepare(traced(seed, make))
        for limit in (None, 10.0, 100.0, 5000.0):
            found = find_sideband(prepared.graph, prepared.units, prepared.edges, limit)
            assert found == by_rounds(prepared.graph, prepared.units, prepared.edges, limit), (seed, limit)
            sizes.add(len(found))
    assert len(sizes) > 5


@pytest.mark.slow
@pytest.mark.repeated
def test_a_mask_that_loses_one_value_a_round_is_settled_in_linear_time():
    """Its first value is too large, so the second goes, then the third …: looking at all in each round would be
    10^9 looks."""
    assert prepare(_rounds(20_000, 10**6)).sideband == {"x"}
    assert len(prepare(_rounds(1_000, 1)).sideband) == 1_001


def _rounds(length, first):
    """A chain of so many values, each read twice; the first of that many bytes."""
    nodes = [leaf("x"), leaf("w", "parameter"), op("h", "x", "w", size=100), op("m0", "x", size=first)]
    nodes += [op(f"m{i}", f"m{i - 1}", size=1) for i in range(1, length)]
    nodes += [op(f"r{i}.{side}", f"m{i}", "h", "w", size=100) for i in range(length) for side in "ab"]
    nodes.append(GraphNode("o", "output", inputs=tuple(node.id for node in nodes if node.id[0] == "r")))
    return TorchGraph(tuple(nodes))
