"""Random placement instances, and an oracle that shares nothing with the search."""

from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance

COEFFICIENTS = (
    (-0.01, 5.0, 2.0, 150.0), (-0.008, 3.0, 1.5, 100.0), (-0.012, 6.0, 2.5, 200.0), (-0.007, 2.0, 1.2, 70.0),
    (-0.005, 1.5, 0.8, 50.0),
)  # fmt: skip
"""Of A100, V100, H100, A10 and T4: throughput a * sequence + b * batch + c * layers + d, at least 1."""
MEMORY_GIB = (80.0, 32.0, 80.0, 24.0, 16.0)
NETWORKS = (
    "two tiers", "arbitrary, symmetric", "arbitrary, asymmetric", "few values, holes", "by pairs of nodes",
)  # fmt: skip
"""The shape of a random instance's network, by its seed modulo 5."""
Value = Callable[[tuple[int, ...], int], float]


def linear_value(batch: int, sequence: int, layer_gib: float, activation_gib: float) -> Value:
    """Throughput that rises with layers, cut off by memory; `activation_gib` is that of a sample."""

    def value(kinds: tuple[int, ...], count: int) -> float:
        part = batch / len(kinds)
        for kind in kinds:
            if count * layer_gib + 1.15 * part * activation_gib > MEMORY_GIB[kind]:
                return 0.0
        least = min(
            max(1.0, a * sequence + b * part + c * count + d)
            for a, b, c, d in (COEFFICIENTS[kind] for kind in kinds)
        )
        return least if len(kinds) == 1 else least * len(kinds) * 0.85

    return value


def falling_value(batch: int, layer_gib: float, activation_gib: float) -> Value:
    """Throughput that falls with layers, as a roofline's does."""

    def value(kinds: tuple[int, ...], count: int) -> float:
        part = batch / len(kinds)
        for kind in kinds:
            if count * layer_gib + 1.15 * part * activation_gib > MEMORY_GIB[kind]:
                return 0.0
        least = min(COEFFICIENTS[kind][3] * 10 / (count * (0.3 + part / batch)) for kind in kinds)
        return least if len(kinds) == 1 else least * 0.85

    return value


def jagged_value(seed: int) -> Value:
    """Throughput as a measured table may have it: up and down with layers, with holes."""

    def value(kinds: tuple[int, ...], count: int) -> float:
        draw = np.random.default_rng([seed, count, *kinds])
        return 0.0 if draw.random() < 0.25 else float(draw.integers(1, 12)) * len(kinds)

    return value


def random_instance(seed: int) -> ProblemInstance:
    """Up to 5 layers, 6 GPUs and 3 GPUs a segment; the network's shape and the throughput follow from the seed."""
    draw = np.random.default_rng(seed)
    layers, gpus = int(draw.integers(1, 6)), int(draw.integers(1, 7))
    kinds = tuple(int(kind) for kind in draw.integers(0, draw.integers(1, 6), gpus))
    most = int(draw.integers(1, 4))
    shape = seed % 5
    node = draw.integers(0, 3, gpus)
    if shape == 0:
        tier = np.where(node[:, None] == node[None, :], 600.0, 80.0)
        links = tier * draw.choice([0.1, 1.0, 10.0])
    elif shape == 1:
        links = draw.uniform(0, 600, (gpus, gpus))
        links = np.minimum(links, links.T)
    elif shape == 2:
        links = draw.uniform(0, 600, (gpus, gpus))
    elif shape == 3:
        links = draw.integers(0, 4, (gpus, gpus)) * draw.choice([3.0, 60.0, 200.0])
    else:
        tier = draw.uniform(10, 400, (3, 3))
        links = tier[node[:, None], node[None, :]]
    values = (
        linear_value(int(draw.integers(1, 33)), 2048, float(draw.uniform(3, 20)), float(draw.uniform(0, 1))),
        falling_value(16, float(draw.uniform(3, 20)), float(draw.uniform(0, 1))),
        jagged_value(seed),
    )
    return ProblemInstance(layers, kinds, links, most, values[seed // 5 % 3])


def worth_of(instance: ProblemInstance, segments: tuple[tuple[int, tuple[int, ...]], ...]) -> float:
    """The throughput of a pipeline by the words of its definition."""
    assert sum(count for count, _ in segments) == instance.layers
    used = [gpu for _, gpus in segments for gpu in gpus]
    assert len(used) == len(set(used))
    least = float("inf")
    for count, gpus in segments:
        assert count >= 1 and 1 <= len(gpus) <= instance.max_gpus and list(gpus) == sorted(gpus)
        least = min(least, instance.value(tuple(sorted(instance.kinds[gpu] for gpu in gpus)), count))
    for (_, left), (_, right) in pairwise(segments):
        least = min(least, *(float(instance.links[i, j]) for i in left for j in right))
    return least


def best_of_all(instance: ProblemInstance) -> tuple[float, int]:
    """(highest throughput, fewest GPUs at it) over every pipeline; (0.0, 0) where there is none."""
    sets = [
        gpus
        for size in range(1, instance.max_gpus + 1)
        for gpus in combinations(range(len(instance.kinds)), size)
    ]
    value = {
        (gpus, count): instance.value(tuple(sorted(instance.kinds[gpu] for gpu in gpus)), count)
        for gpus in sets
        for count in range(1, instance.layers + 1)
    }
    best = (0.0, 0)

    def extend(left: int, last: tuple[int, ...], used: frozenset[int], least: float) -> None:
        nonlocal best
        if least <= 0 or least < best[0]:
            return
        if left == 0:
            best = max(best, (least, -len(used)))
            return
        for gpus in sets:
            if used & set(gpus):
                continue
            link = min((float(instance.links[i, j]) for i in last for j in gpus), default=float("inf"))
            for count in range(1, left + 1):
                extend(left - count, gpus, used | set(gpus), min(least, link, value[gpus, count]))

    extend(instance.layers, (), frozenset(), float("inf"))
    return best[0], -best[1]
