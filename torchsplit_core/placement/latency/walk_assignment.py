"""GPUs for a walk over groups: the quickest of some assignments, by beam search; no proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.latency.walks import Groups
from torchsplit_core.placement.model.instance import ProblemInstance, Segments

_WIDTH = 200
"""States kept a step. Chosen, not measured."""

_SETS = 60
"""Most GPU sets of a segment that are tried for each state. Chosen, not measured."""

WalkStep = tuple[np.ndarray, int]
"""The GPUs of each group, and a layer count."""


@dataclass(frozen=True)
class _State:
    segments: Segments
    used: frozenset[int]
    hops_s: float


def assign_walk(
    instance: ProblemInstance, costs: PassCosts, groups: Groups, steps: Sequence[WalkStep], threshold: float
) -> Segments:
    """A pipeline of these steps in this order; () if none was found."""
    states = [_State((), frozenset(), 0.0)]
    for counts, layers in steps:
        longer: list[_State] = []
        for state in states:
            parts = [
                combinations([gpu for gpu in groups[group] if gpu not in state.used], int(counts[group]))
                for group in np.flatnonzero(counts).tolist()
            ]
            for _, chosen in zip(range(_SETS), product(*parts), strict=False):
                gpus = tuple(sorted(gpu for part in chosen for gpu in part))
                hop_s = 0.0
                if state.segments:
                    link = float(instance.links[np.ix_(state.segments[-1][1], gpus)].min())
                    if link < threshold or link <= 0:
                        continue
                    hop_s = float(costs.link_s(np.array(link)))
                longer.append(
                    _State((*state.segments, (layers, gpus)), state.used.union(gpus), state.hops_s + hop_s)
                )
        # Of states with the same GPUs and the same last ones, the quickest.
        longer.sort(key=lambda state: (state.hops_s, state.segments))
        states = list({(state.used, state.segments[-1][1]): state for state in reversed(longer)}.values())
        states = sorted(states, key=lambda state: (state.hops_s, state.segments))[:_WIDTH]
    return states[0].segments if states else ()
