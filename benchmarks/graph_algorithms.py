"""Dominators, regions and preparation of large graphs: seconds, memory, and the ratio to networkx.

Two families. layered: layers of 50 values, each reading two of the layer before, drawn at random.
transformer: blocks of 17 operations with two residual sums, heads that fan out and in, one mask and one
table of angles that all blocks read. Every graph has a process of its own, whose peak memory is given.
Times are seconds of processor time of one thread, so that a busy machine spoils them less; where
several turns are taken, ours and networkx's alternate and medians are given. Prints Markdown tables.

Dominators. build: from ids and edges to the graph that is walked, integers here and a DiGraph there.
find: from that graph to the immediate dominator of every value, a list of places here and a dict of ids
there. all, named: from ids and edges to a dict of ids.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import networkx as nx

from torchsplit_core.graph import ENTRY, TorchGraph, immediate_dominators, prepare, region_tree
from torchsplit_core.graph.flow import FlowGraph, build_flow
from torchsplit_core.values import GraphNode

Edges = list[tuple[str, str]]
WIDTH = 50


def layered(size: int) -> tuple[list[str], Edges]:
    """Ids in topological order and edges, two into each value after the first layer."""
    rng = random.Random(0)
    ids = [f"n{i}" for i in range(size)]
    edges = []
    for i in range(WIDTH, size):
        start = (i // WIDTH - 1) * WIDTH
        edges += [(ids[start + j], ids[i]) for j in rng.sample(range(WIDTH), 2)]
    return ids, edges


def transformer(size: int) -> tuple[list[str], Edges]:
    """Ids in topological order and edges of whole blocks, with at least `size` values."""
    ids: list[str] = []
    edges: Edges = []

    def value(*read: str) -> str:
        ids.append(f"n{len(ids)}")
        edges.extend((source, ids[-1]) for source in read)
        return ids[-1]

    hidden, angles, mask = value(), value(), value()
    while len(ids) < size:
        norm = value(hidden)
        query, key, content = value(norm), value(norm), value(norm)
        scores = value(value(value(query, angles), value(key, angles)), mask)
        attended = value(value(value(value(scores), content)), hidden)
        norm = value(attended)
        gated = value(value(value(norm)), value(norm))
        hidden = value(value(gated), attended)
    return ids, edges


FAMILIES = {"layered": layered, "transformer": transformer}


def torch_graph(operations: int) -> TorchGraph:
    """The transformer family as a traced graph: weights, one view a block, three picked heads, one output."""
    nodes = [GraphNode("ids", "input", output_bytes=64), GraphNode("mask", "input", output_bytes=64)]
    count = 0

    def op(*read: str, target: str = "aten.add.Tensor") -> str:
        nonlocal count
        count += 1
        nodes.append(
            GraphNode(f"n{count}", "op", "call_function", target, read, "layers", (1, 64), "float32", 4096)
        )
        return nodes[-1].id

    def linear(read: str) -> str:
        nodes.append(GraphNode(f"w{len(nodes)}", "parameter", output_bytes=65536))
        return op(read, nodes[-1].id, target="aten.linear.default")

    bias = op("mask", target="aten.mul.Tensor")
    hidden = linear("ids")
    while count < operations:
        split = op(linear(op(hidden)), target="aten.split.Tensor")
        query, key, content = (op(split, target="getitem") for _ in range(3))
        attended = op(hidden, linear(op(op(query, key, content, bias), target="aten.view.default")))
        norm = op(attended)
        hidden = op(attended, linear(op(op(linear(norm)), linear(norm))))
    nodes.append(GraphNode("output", "output", inputs=(hidden,)))
    return TorchGraph(tuple(nodes))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds, and the result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def networkx_graph(ids: list[str], edges: Edges) -> nx.DiGraph[str]:
    """The graph for networkx, with an entry node before all sources."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_node(ENTRY)
    graph.add_nodes_from(ids)
    graph.add_edges_from(edges)
    graph.add_edges_from([(ENTRY, name) for name in ids if not graph.in_degree(name)])
    return graph


def integers(ids: list[str], edges: Edges) -> FlowGraph:
    """The graph as integers, the form that our dominator search walks (its counterpart of networkx's DiGraph)."""
    flow = build_flow(ids, edges)
    assert flow.reads
    return flow


def dominators(family: str, size: int, turns: int, theirs: bool) -> dict[str, float]:
    """Median seconds, turn by turn: building the graph, finding dominators, and both from ids and edges to {id: id}."""
    ids, edges = FAMILIES[family](size)
    found: dict[str, list[float]] = {"build": [], "find": [], "whole": [], "nx_build": [], "nx_find": []}
    for _ in range(turns):
        build_s, flow = timed(lambda: integers(ids, edges))
        find_s, above = timed(flow.dominators)
        whole_s, ours = timed(lambda: immediate_dominators(ids, edges))
        found["build"].append(build_s)
        found["find"].append(find_s)
        found["whole"].append(whole_s)
        if theirs:
            seconds, graph = timed(lambda: networkx_graph(ids, edges))
            found["nx_build"].append(seconds)
            seconds, other = timed(partial(nx.immediate_dominators, graph, ENTRY))
            found["nx_find"].append(seconds)
            if ours != other:
                raise SystemExit(f"dominators differ from networkx's: {family}, {size}")
            del graph, other
        del flow, above, ours
    return {"edges": len(edges)} | {name: median(values) for name, values in found.items() if values}


def regions(family: str, size: int) -> dict[str, float]:
    """Seconds of finding the region tree, and of reading each of its regions once."""
    ids, edges = FAMILIES[family](size)
    find_s, tree = timed(lambda: region_tree((ids, edges)))
    look_s, held = timed(lambda: sum(region.count for region in tree.regions))
    return {"find": find_s, "look": look_s, "regions": len(tree.regions), "held": held, "size": len(ids)}


def preparation(size: int) -> dict[str, float]:
    """Seconds of the graph's tables, of its preparation, and of the regions of its units."""
    graph_s, graph = timed(lambda: torch_graph(size))
    tables_s, _ = timed(lambda: (graph.by_id, graph.users, graph.topological_ids))
    prepare_s, prepared = timed(lambda: prepare(graph))
    regions_s, tree = timed(lambda: region_tree(prepared))
    return {
        "nodes": len(graph.nodes), "build": graph_s, "tables": tables_s, "prepare": prepare_s,
        "regions": regions_s, "units": len(prepared.units), "cuts": len(tree.cut_points),
    }  # fmt: skip


def alone(arguments: list[str]) -> dict[str, float]:
    """Run one measurement in a process by itself; adds the process's peak memory in MiB."""
    print(" ".join(arguments), file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "benchmarks.graph_algorithms", "--one", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def one(what: str, *arguments: str) -> None:
    """Run one measurement and print its figures."""
    if what == "dominators":
        family, size, turns, theirs = arguments
        found = dominators(family, int(size), int(turns), theirs == "networkx")
    elif what == "regions":
        found = regions(arguments[0], int(arguments[1]))
    else:
        found = preparation(int(arguments[0]))
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def report(sizes: list[int], turns: int, most_networkx: int) -> None:
    """Print the three tables."""
    print(
        "| immediate dominators | values | edges | ours: build, s | ours: find, s | ours: all, named, s "
        "| networkx: build, s | networkx: find, s | ratio, find | ratio, all | networkx find / ours all |"
    )
    print("|---" * 11 + "|")
    for family in FAMILIES:
        for size in sizes:
            theirs = size <= most_networkx
            taken = turns if size < 1_000_000 else 1
            row = alone(["dominators", family, str(size), str(taken), "networkx" if theirs else "-"])
            cells = [f"{row[name]:.3f}" for name in ("build", "find", "whole")]
            if theirs:
                cells += [
                    f"{row['nx_build']:.2f}",
                    f"{row['nx_find']:.2f}",
                    f"**{row['nx_find'] / row['find']:.1f}**",
                ]
                cells.append(f"{(row['nx_build'] + row['nx_find']) / row['whole']:.1f}")
                cells.append(f"{row['nx_find'] / row['whole']:.1f}")
            else:
                cells += ["n/a"] * 5
            print(f"| {family} | {size:,} | {row['edges']:,} | {' | '.join(cells)} |", flush=True)
    print(
        "\n| region tree | values | regions | find, s | look at each, s | s per million values | peak, MiB |"
    )
    print("|---" * 7 + "|")
    for family in FAMILIES:
        for size in sizes:
            row = alone(["regions", family, str(size)])
            rate = (row["find"] + row["look"]) / row["size"] * 1e6
            print(f"| {family} | {row['size']:,} | {row['regions']:,} | {row['find']:.2f} | {row['look']:.2f} "
                  f"| {rate:.1f} | {row['peak']:.0f} |", flush=True)  # fmt: skip
    print("\n| preparation: operations | nodes | tables of the graph, s | prepare, s | units | their regions, s "
          "| cut points | s per million operations | peak, MiB |")  # fmt: skip
    print("|---" * 9 + "|")
    for size in sizes:
        row = alone(["prepare", str(size)])
        print(f"| {size:,} | {row['nodes']:,} | {row['tables']:.2f} | {row['prepare']:.2f} | {row['units']:,} "
              f"| {row['regions']:.2f} | {row['cuts']:,} | {row['prepare'] / size * 1e6:.1f} "
              f"| {row['peak']:.0f} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--turns", type=int, default=5, help="for dominators below a million values")
    parser.add_argument("--networkx", type=int, default=1_000_000, help="the largest size to give networkx")
    parser.add_argument("--one", nargs="+", help="one measurement as JSON")
    options = parser.parse_args()
    if options.one:
        one(*options.one)
    else:
        report(options.sizes, options.turns, options.networkx)


if __name__ == "__main__":
    main()
