"""What the exact search for placements reaches: value, certified bound, seconds, peak memory.

First random small instances against a look at every pipeline, by kind of network. Then fleets, each in a
process of its own, whose peak memory is the largest resident set (ru_maxrss) with the search imported. `no
network` is the optimum were every link fast enough: where it is larger, the links bind. Then the same search
again after one change, in one process, with the plan before the change to start from. Ends with 1 when a
small instance differs, or when a plan is not worth what the search says.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

# The tests' oracle: it shares nothing with the search.
from tests.support.placement.search_cases import (
    MEMORY_GIB,
    NETWORKS,
    best_of_all,
    falling_value,
    linear_value,
    random_instance,
    worth_of,
)
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.request.build import build_request
from torchsplit_core.placement.search import search_thresholds
from torchsplit_core.values import PlacementRequest

ROOT = Path(__file__).resolve().parent.parent
_H100, _A10, _T4 = 2, 3, 4


def _nodes(count: int, per_node: int, seed: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Each GPU's node and kind; all GPUs of a node are alike."""
    node = np.arange(count) // per_node
    drawn = np.random.default_rng(seed).integers(0, len(MEMORY_GIB), node[-1] + 1)
    return node, tuple(int(drawn[one]) for one in node)


def _tiers(node: np.ndarray, nodes_per_pod: int, speeds: tuple[float, float, float]) -> np.ndarray:
    """Link speeds by tier: within a node, within a pod, between pods."""
    pod = node // nodes_per_pod
    links = np.where(pod[:, None] == pod, speeds[1], speeds[2])
    return np.where(node[:, None] == node, speeds[0], links)


def _weights(kinds: tuple[int, ...], layers: int, share: float) -> float:
    """GB of a layer such that all layers together need this share of the fleet's memory."""
    return sum(MEMORY_GIB[kind] for kind in kinds) * share / layers


def _seed_fleet(most: int) -> ProblemInstance:
    kinds = tuple([_H100] * 10 + [_A10] * 10 + [_T4] * 10)
    links = _tiers(np.arange(30) // 5, 2, (2400.0, 900.0, 300.0))
    return ProblemInstance(14, kinds, links, most, linear_value(100, 2048, 11.0, 0.05))


def _in_nodes(seed: int) -> ProblemInstance:
    node, kinds = _nodes(65, 6, seed)
    links = _tiers(np.minimum(node, 11), 4, (900.0, 250.0, 60.0))
    return ProblemInstance(80, kinds, links, 3, falling_value(64, _weights(kinds, 80, 0.25), 0.05))


def _structured(speeds: tuple[float, float, float], *, by_card: bool) -> ProblemInstance:
    """1,024 GPUs in 128 nodes of 8; `by_card`: the slower of two nodes' network cards sets the speed of their link."""
    node, kinds = _nodes(1024, 8, 0)
    links = _tiers(node, 16, speeds)
    if by_card:
        card = np.array([200.0, 100.0, 400.0, 50.0, 25.0])[np.array(kinds)]
        links = np.where(node[:, None] == node, links, np.minimum(card[:, None], card))
    return ProblemInstance(126, kinds, links, 4, falling_value(64, 2.0, 0.05))


def arbitrary(gpus: int, layers: int, most: int, seed: int) -> ProblemInstance:
    """Every link is drawn independently, each direction too."""
    _, kinds = _nodes(gpus, 5, seed)
    links = np.random.default_rng(seed).uniform(0, 400, (gpus, gpus))
    return ProblemInstance(layers, kinds, links, most, falling_value(64, _weights(kinds, layers, 0.2), 0.05))


def noisy_nodes(gpus: int, layers: int, most: int, seed: int) -> ProblemInstance:
    """Fast nodes of 5 GPUs; links between them of about 80 are drawn independently, each direction too."""
    node, kinds = _nodes(gpus, 5, seed)
    drawn = np.random.default_rng(seed).lognormal(np.log(80), 0.5, (gpus, gpus))
    links = np.where(node[:, None] == node, 600.0, drawn)
    return ProblemInstance(
        layers, kinds, links, most, linear_value(64, 2048, _weights(kinds, layers, 0.25), 0.05)
    )


def _several(gpus: int, layers: int, seed: int) -> ProblemInstance:
    """As `arbitrary`, with activations that fit a small GPU only if the batch is divided."""
    _, kinds = _nodes(gpus, 5, seed)
    links = np.random.default_rng(seed).uniform(0, 400, (gpus, gpus))
    return ProblemInstance(layers, kinds, links, 3, linear_value(64, 2048, _weights(kinds, layers, 0.2), 0.6))


def _types(
    model: str, nodes: int, most: int, split: Literal["equal", "proportional"], batch: int, **options: Any
) -> ProblemInstance:
    """`nodes` nodes of eight GPUs for each of five types, as `torchsplit place MODEL --fleet …` builds them."""
    types = ("H100-SXM5-80GB", "A100-80GB", "L40S-48GB", "V100-SXM2-32GB", "A10-24GB")
    fleet = ",".join(f"{nodes}x8x{name}" for name in types)
    request = build_request(model, fleet, batch_size=batch, max_gpus_per_segment=most, split=split, **options)
    return _thresholds(request)


def _thresholds(request: PlacementRequest) -> ProblemInstance:
    """A decode request as the threshold search gets it: one batch in flight with the memory of its prompts, without
    the time of a pass (placement/latency/in_flight handles that)."""
    model = request.model
    model = replace(model, sequences_in_flight=model.batch_size, prefill_chunk=model.sequence_length)
    instance = build_instance(SegmentModel(replace(request, model=model)))
    return instance.with_segment_range(1, instance.max_segments())


def _one_type(split: Literal["equal", "proportional"]) -> ProblemInstance:
    request = build_request(
        "llama-3.1-70b", "128x8xA100-80GB", batch_size=2048, max_gpus_per_segment=64, split=split
    )
    return _thresholds(request)


CASES: dict[str, tuple[Callable[[], ProblemInstance], float]] = {
    "14 x 30, 3 a segment": (lambda: _seed_fleet(3), 60.0),
    "14 x 30, 4 a segment": (lambda: _seed_fleet(4), 60.0),
    "80 x 65 in 12 nodes": (lambda: _in_nodes(1), 60.0),
    "126 x 1,024 in tiers": (lambda: _structured((900.0, 300.0, 100.0), by_card=False), 60.0),
    "126 x 1,024, slow tiers": (lambda: _structured((900.0, 100.0, 20.0), by_card=False), 60.0),
    "126 x 1,024, network cards": (lambda: _structured((900.0, 0.0, 0.0), by_card=True), 60.0),
    "126 x 1,024, slow inside nodes": (
        lambda: _structured((20.0, 100.0, 100.0), by_card=False),
        60.0,
    ),
    "80 x 65 arbitrary, 1": (lambda: arbitrary(65, 80, 1, 5), 60.0),
    "80 x 65 arbitrary, 2": (lambda: arbitrary(65, 80, 2, 5), 60.0),
    "80 x 65 arbitrary, 3": (lambda: arbitrary(65, 80, 3, 5), 60.0),
    "80 x 65 noisy nodes, 3": (lambda: noisy_nodes(65, 80, 3, 7), 60.0),
    "80 x 65 arbitrary, several needed": (lambda: _several(65, 80, 7), 60.0),
    "126 x 256 arbitrary, 1": (lambda: arbitrary(256, 126, 1, 7), 120.0),
    "126 x 256 arbitrary, 3": (lambda: arbitrary(256, 126, 3, 7), 120.0),
    "126 x 256 noisy nodes, 3": (lambda: noisy_nodes(256, 126, 3, 7), 120.0),
    "80 x 160 of five types, 16 equal": (lambda: _types("llama-3.1-70b", 4, 16, "equal", 1024), 60.0),
    "80 x 160 of five types, 16 proportional": (
        lambda: _types("llama-3.1-70b", 4, 16, "proportional", 1024),
        60.0,
    ),
    "80 x 160 of five types, 64 equal": (lambda: _types("llama-3.1-70b", 4, 64, "equal", 1024), 60.0),
    "80 x 160 of five types, 64 proportional": (
        lambda: _types("llama-3.1-70b", 4, 64, "proportional", 1024),
        60.0,
    ),
    "80 x 160 of five types, 64 equal, prefill": (
        lambda: _types("llama-3.1-70b", 4, 64, "equal", 256, phase="prefill"),
        60.0,
    ),
    "80 x 160 of five types, 64 proportional, prefill": (
        lambda: _types("llama-3.1-70b", 4, 64, "proportional", 256, phase="prefill"),
        60.0,
    ),
    "126 x 1,280 of five types, 16 equal": (
        lambda: _types("llama-3.1-405b", 32, 16, "equal", 256),
        60.0,
    ),
    "80 x 1,024 of one type, 64 equal": (lambda: _one_type("equal"), 60.0),
    "80 x 1,024 of one type, 64 proportional": (lambda: _one_type("proportional"), 60.0),
}
"""By name, which begins with layers x GPUs: the instance and the time limit in seconds."""


def small(count: int) -> int:
    """Print how many random small instances equal the exhaustive search over pipelines; return how many do not."""
    wrong = 0
    print("| network | instances | equal | no pipeline | links bind |")
    print("|---|---|---|---|---|")
    for shape, network in enumerate(NETWORKS):
        equal = none = binding = 0
        seeds = range(shape, count, len(NETWORKS))
        for seed in seeds:
            instance = random_instance(seed)
            value, gpus = best_of_all(instance)
            found = search_thresholds(instance, time_limit_s=60)
            used = sum(len(chosen) for _, chosen in found.segments)
            right = found.proven and found.value == found.bound == value and used == gpus
            equal += right and (not found.segments or worth_of(instance, found.segments) == value)
            none += not value
            binding += value < _without_network(instance)
        print(f"| {network} | {len(seeds)} | {equal} | {none} | {binding} |", flush=True)
        wrong += len(seeds) - equal
    return wrong


def _without_network(instance: ProblemInstance) -> float:
    return search_thresholds(
        replace(instance, links=np.full_like(instance.links, np.inf)), time_limit_s=60
    ).value


def measure(name: str) -> dict[str, object]:
    """Search a case in this process; the search without a network comes last, so that the peak is the search's."""
    build, seconds = CASES[name]
    instance = build()
    started = time.monotonic()
    found = search_thresholds(instance, time_limit_s=seconds)
    taken = time.monotonic() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "value": found.value,
        "bound": found.bound,
        "segments": len(found.segments),
        "gpus": sum(len(gpus) for _, gpus in found.segments),
        "seconds": taken,
        "peak_mib": peak_mib,
        "free": _without_network(instance),
        "right": not found.segments or worth_of(instance, found.segments) == found.value,
    }


def large(names: list[str]) -> int:
    """Print a row for each case; return how many plans are not worth what the search says."""
    wrong = 0
    print(
        "| layers x GPUs | value | bound | gap, % | no network | segments | GPUs | seconds | limit, s | peak, MiB |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        command = [sys.executable, "-m", "benchmarks.placement_search", "--child", name]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout)
        gap = 100 * (1 - row["value"] / row["bound"]) if row["bound"] else 0.0
        print(
            f"| {name} | {row['value']:.1f} | {row['bound']:.1f} | {gap:.2f} | {row['free']:.1f} | {row['segments']} "
            f"| {row['gpus']} | {row['seconds']:.2f} | {CASES[name][1]:.0f} | {row['peak_mib']:.0f} |",
            flush=True,
        )
        wrong += not row["right"]
    return wrong


def what_if(names: list[str], changes: int) -> None:
    """Print the time to search again after a change: a GPU without links, a link halved, a layer more or less."""
    print("| again after one change | changes | median, ms | largest, ms | proven |")
    print("|---|---|---|---|---|")
    for name in names:
        instance = CASES[name][0]()
        before = search_thresholds(instance, time_limit_s=60)
        taken, proven = [], 0
        for seed in range(changes):
            changed = _changed(instance, seed)
            started = time.monotonic()
            after = search_thresholds(changed, time_limit_s=60, warm_start=before)
            taken.append(1000 * (time.monotonic() - started))
            proven += after.proven
        print(f"| {name} | {changes} | {median(taken):.0f} | {max(taken):.0f} | {proven} |", flush=True)


def _changed(instance: ProblemInstance, seed: int) -> ProblemInstance:
    draw = np.random.default_rng(seed)
    one, other = (int(place) for place in draw.choice(len(instance.kinds), 2, replace=False))
    links = instance.links.copy()
    if seed % 4 == 0:
        links[one, :] = links[:, one] = 0.0
    elif seed % 4 == 1:
        links[one, other] /= 2
    return replace(instance, links=links, layers=instance.layers + (0, 0, 1, -1)[seed % 4])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=1000)
    parser.add_argument("--cases", nargs="*", choices=tuple(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--what-if", nargs="*", choices=tuple(CASES), default=list(CASES)[:7], metavar="NAME")
    parser.add_argument("--changes", type=int, default=12)
    parser.add_argument("--child", choices=tuple(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return 0
    wrong = small(options.random)
    print()
    wrong += large(options.cases)
    print()
    what_if(options.what_if, options.changes)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
