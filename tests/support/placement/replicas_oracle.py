"""The best sets of disjoint pipelines by going through all of them; shares nothing with the search."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np

from tests.support.placement.search_cases import random_instance
from torchsplit_core.placement.model.instance import ProblemInstance


def small_instance(seed: int) -> ProblemInstance:
    """Up to 4 layers and 5 GPUs of a random instance; now and then a copy of one node beside it."""
    found = random_instance(seed)
    gpus = min(5, len(found.kinds))
    found = replace(
        found, layers=min(4, found.layers), kinds=found.kinds[:gpus], links=found.links[:gpus, :gpus]
    )
    if seed % 7 or gpus < 2:
        return found
    node = np.array([0, 1, 0, 1])
    across = float(found.links[0, 1])
    links = np.where(node[:, None] == node, float(found.links[1, 0]), across)
    return replace(found, kinds=tuple(found.kinds[one] for one in node), links=links)


def best_by_set(instance: ProblemInstance) -> dict[int, float]:
    """The throughput of the best pipeline that uses exactly these GPUs (as bits), where there is one."""
    gpus = range(len(instance.kinds))
    sets = [chosen for size in range(1, instance.max_gpus + 1) for chosen in combinations(gpus, size)]
    masks = [sum(1 << gpu for gpu in chosen) for chosen in sets]
    links = instance.links.tolist()
    value = [
        [0.0]
        + [
            instance.value(tuple(sorted(instance.kinds[gpu] for gpu in chosen)), count)
            for count in range(1, instance.layers + 1)
        ]
        for chosen in sets
    ]
    joined = [[min(links[i][j] for i in left for j in right) for right in sets] for left in sets]

    # (GPUs used, last set, layers held) -> the highest least so far
    states: dict[tuple[int, int, int], float] = {(0, -1, 0): float("inf")}
    best: dict[int, float] = {}
    while states:
        longer: dict[tuple[int, int, int], float] = {}
        for (used, last, held), least in states.items():
            for number, mask in enumerate(masks):
                if used & mask:
                    continue
                link = joined[last][number] if last >= 0 else float("inf")
                for count in range(1, instance.layers - held + 1):
                    found = min(least, link, value[number][count])
                    if found <= 0:
                        continue
                    if held + count == instance.layers:
                        best[used | mask] = max(found, best.get(used | mask, 0.0))
                    else:
                        key = (used | mask, number, held + count)
                        longer[key] = max(found, longer.get(key, 0.0))
        states = longer
    return best


def best_sum(instance: ProblemInstance, most: int) -> float:
    """The largest sum of throughputs of at most `most` disjoint pipelines; 0 where there is none."""
    best = best_by_set(instance)

    @cache
    def rest(free: int, left: int) -> float:
        if not left:
            return 0.0
        return max(
            (found + rest(free & ~used, left - 1) for used, found in best.items() if used & ~free == 0),
            default=0.0,
        )

    return rest((1 << len(instance.kinds)) - 1, most)
