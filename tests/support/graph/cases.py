"""Random DAGs and small hand-built graphs for the graph tests."""

from __future__ import annotations

import random
from collections.abc import Sequence

import networkx as nx

from torchsplit_core.graph import ENTRY, EXIT, TorchGraph
from torchsplit_core.values import GraphNode


def random_dag(seed: int, most: int = 14) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Ids in shuffled order and edges of a random DAG."""
    rng = random.Random(seed)
    n = rng.randint(1, most)
    density = rng.choice((0.1, 0.2, 0.35))
    names = [f"v{i}" for i in range(n)]
    edges = [
        (names[i], names[j])
        for i in range(n)
        for j in range(i + 1, n)
        if rng.random() < density or (j == i + 1 and rng.random() < 0.6)
    ]
    rng.shuffle(names)
    rng.shuffle(edges)
    return tuple(names), tuple(edges)


def series_parallel(seed: int, most: int = 14) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """A DAG grown by putting values into edges and beside them, here and there left loose at one end."""
    rng = random.Random(seed)
    n = rng.randint(2, most)
    edges = [("v0", "v1")]
    for i in range(2, n):
        place = rng.randrange(len(edges))
        (a, b), new, drawn = edges[place], f"v{i}", rng.random()
        if drawn < 0.45:
            edges[place : place + 1] = [(a, new), (new, b)]
        elif drawn < 0.9:
            edges += [(a, new), (new, b)]
        else:
            edges.append((a, new) if drawn < 0.95 else (new, b))
    ids = [f"v{i}" for i in range(n)]
    rng.shuffle(ids)
    return tuple(ids), tuple(edges)


def nested_diamonds(depth: int) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """`depth` regions, each inside the one before: a0 -> (a1 -> (…) -> z1, beside y0) -> z0."""
    levels = range(depth)
    ids = [f"{letter}{i}" for letter in "azy" for i in levels]
    edges = [(f"a{i}", f"y{i}") for i in levels] + [(f"y{i}", f"z{i}") for i in levels]
    edges += [(f"a{i - 1}", f"a{i}") for i in levels[1:]] + [(f"z{i}", f"z{i - 1}") for i in levels[1:]]
    return tuple(ids), (*edges, (f"a{depth - 1}", f"z{depth - 1}"))


def op(
    name: str, *inputs: str, target: str = "aten.relu.default", size: int = 1000, module: str = ""
) -> GraphNode:
    return GraphNode(
        name, "op", op="call_function", target=target, inputs=inputs, output_bytes=size, module=module
    )


def traced_at_random(seed: int, most: int = 16) -> TorchGraph:
    """Inputs, weights of every kind, constants, views of several inputs, dead operations, one to three results."""
    rng = random.Random(seed)
    nodes = [leaf("x0", size=40), leaf("x1", size=9)]
    nodes += [
        leaf(f"w{i}", rng.choice(("parameter", "buffer", "constant"))) for i in range(rng.randint(1, 4))
    ]
    targets = (
        "aten.relu.default", "aten.add.Tensor", "aten.view.default", "aten.expand_as.default", "getitem",
    )  # fmt: skip
    weights = [node.id for node in nodes if node.kind != "input"]
    for i in range(rng.randint(2, most)):
        known = weights if rng.random() < 0.3 else [node.id for node in nodes]
        inputs = rng.sample(known, min(len(known), rng.choice((1, 1, 2, 2, 3))))
        nodes.append(op(f"n{i}", *inputs, target=rng.choice(targets), size=rng.choice((10, 100, 1000))))
    ops = [node.id for node in nodes if node.kind == "op"]
    results = rng.sample(ops, min(len(ops), rng.randint(1, 3)))
    return TorchGraph((*nodes, GraphNode("output", "output", inputs=tuple(results))))


def leaf(name: str, kind: str = "input", size: int = 100) -> GraphNode:
    return GraphNode(name, kind, output_bytes=size)  # type: ignore[arg-type]


def masked_encoder(layers: int = 3) -> TorchGraph:
    """A residual encoder as traced: weights, a mask for all layers, getitem, views, dead and constant."""
    nodes = [leaf("ids"), leaf("mask"), leaf("embedding", "parameter", 5000), leaf("positions", "buffer", 64)]
    nodes += [
        op("embed", "ids", "embedding", target="aten.embedding.default", module="embed"),
        op("cast", "mask", target="aten._to_copy.default", size=200),
        op("bias", "cast", target="aten.mul.Tensor", size=200),
        op("angles", "positions", target="aten.cos.default", size=64),
        op("assertion", "ids", target="aten._assert_tensor_metadata.default", size=0),
    ]
    last = "embed"
    for i in range(layers):
        path = f"layers.{i}"
        nodes += [
            leaf(f"w{i}", "parameter", 4000),
            op(f"wt{i}", f"w{i}", target="aten.t.default", size=4000, module=path),
            op(f"qkv{i}", last, f"wt{i}", "angles", target="aten.linear.default", size=3000, module=path),
            op(f"split{i}", f"qkv{i}", target="aten.split.Tensor", size=0, module=path),
            op(f"q{i}", f"split{i}", target="<built-in function getitem>", module=path),
            op(f"k{i}", f"split{i}", target="<built-in function getitem>", module=path),
            op(f"attn{i}", f"q{i}", f"k{i}", "bias", target="aten.sdpa.default", module=path),
            op(f"view{i}", f"attn{i}", target="aten.view.default", module=path),
            op(f"add{i}", f"view{i}", last, target="aten.add.Tensor", module=path),
        ]
        last = f"add{i}"
    nodes.append(GraphNode("output", "output", inputs=(last,)))
    return TorchGraph(tuple(nodes), architecture_hash="h", traced_batch=2)


def augmented(ids: Sequence[str], edges: Sequence[tuple[str, str]]) -> nx.DiGraph[str]:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from((ENTRY, EXIT, *ids))
    graph.add_edges_from(edges)
    graph.add_edges_from((ENTRY, v) for v in ids if not any(t == v for _, t in edges))
    graph.add_edges_from((v, EXIT) for v in ids if not any(s == v for s, _ in edges))
    return graph


def regions_by_definition(
    ids: Sequence[str], edges: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], set[str]]:
    """{(a, b): held} by deleting vertices, without any dominator algorithm."""
    graph = augmented(ids, edges)
    everything = (ENTRY, *ids, EXIT)
    reached: dict[str, set[str]] = {}
    reaching: dict[str, set[str]] = {}
    for removed in everything:
        rest = graph.subgraph(set(everything) - {removed})
        reached[removed] = set() if removed == ENTRY else {ENTRY, *nx.descendants(rest, ENTRY)}
        reaching[removed] = set() if removed == EXIT else {EXIT, *nx.ancestors(rest, EXIT)}
    return {
        (a, b): {n for n in ids if n != a and n not in reached[a] and n not in reaching[b]}
        for a in everything
        for b in everything
        if a != b and b not in reached[a] and a not in reaching[b]
    }
