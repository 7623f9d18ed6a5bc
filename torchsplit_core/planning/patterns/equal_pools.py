"""Pools whose slices give every model the same, as one pool: equal profiles of GPUs that differ in layouts or node.

Patterns that differ only in which of the groups they take a slice from would else be told apart, and none of them is
better: the master would have many times the columns and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity
from torchsplit_core.planning.patterns.feasibility import PatternPlan, PatternSearch
from torchsplit_core.planning.patterns.options import ModelOption, ModelOptions
from torchsplit_core.planning.patterns.pricing import build_pattern


def join_equal_pools(search: PatternSearch) -> tuple[PatternSearch, list[list[int]]]:
    """The search with pools of equal rates joined, and for each of its pools those of `search` (indices)."""
    rates = np.array(
        [stage.rates for model in search.options for option in model.options for stage in option.stages]
    )
    if not len(rates):
        return search, [[pool] for pool in range(len(search.prices))]
    by_rates: dict[bytes, list[int]] = {}
    for pool in range(rates.shape[1]):
        by_rates.setdefault(rates[:, pool].tobytes(), []).append(pool)
    members = list(by_rates.values())
    capacity = search.capacity
    joined = FleetCapacity(
        tuple(capacity.pools[pools[0]] for pools in members),
        capacity.columns,
        np.array([capacity.slices[pools].sum(axis=0) for pools in members]),
        capacity.gpus,
        capacity.group_of,
        np.array([capacity.max_slices[pools].sum() for pools in members]),
        capacity.taken_by_group,
        capacity.at_most,
    )
    first = [pools[0] for pools in members]
    options = tuple(
        ModelOptions(
            [
                ModelOption(
                    tuple(
                        replace(
                            stage,
                            rates=stage.rates[first],
                            choices=tuple(stage.choices[pool] for pool in first),
                        )
                        for stage in option.stages
                    )
                )
                for option in model.options
            ]
        )
        for model in search.options
    )
    most = np.array([search.most[:, pools].sum(axis=1) for pools in members]).T
    start = 1.0 / np.maximum(joined.max_slices, 1)
    return PatternSearch(joined, options, search.demand, start, most), members


def part_equal_pools(
    plan: PatternPlan, members: Sequence[Sequence[int]], search: PatternSearch
) -> PatternPlan:
    """A plan of joined pools as one of the pools of `search`: each pool is used up before the next."""
    left: Counts = search.capacity.slices @ plan.layouts
    patterns = []
    for model, pattern in enumerate(plan.patterns):
        if pattern.option < 0:
            patterns.append(replace(pattern, usage=np.zeros_like(left)))
            continue
        stages = np.zeros((len(pattern.stages), len(left)), dtype=np.int64)
        for stage, joined in np.argwhere(pattern.stages).tolist():
            wanted = int(pattern.stages[stage, joined])
            for pool in members[joined]:
                taken = min(wanted, int(left[pool]))
                stages[stage, pool] += taken
                left[pool] -= taken
                wanted -= taken
        patterns.append(build_pattern(search.options[model].options[pattern.option], pattern.option, stages))
    return PatternPlan(tuple(patterns), plan.layouts)
