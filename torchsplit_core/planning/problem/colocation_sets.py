"""Which models of co-locations can stand on one GPU together, and how to deal them out.

A GPU's presence is the set of these models that have a slice on it. Counting GPUs by layout and
presence instead of naming them is exact: see `one_each`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from torchsplit_core.values import PlanRequest

MOST_ON_A_GPU = 8
"""No layout of the catalogue has more slices, so no more models can be present."""

MOST_SETS = 256
"""Presences beyond which every GPU is told apart instead."""


def colocation_sets(request: PlanRequest) -> tuple[frozenset[int], ...] | None:
    """Every set of co-located models that the hard co-locations allow on one GPU; None: too many."""
    number = {model.name: index for index, model in enumerate(request.models)}
    tied = sorted({number[name] for item in request.colocations for name in item.models})
    together: dict[int, frozenset[int]] = {model: frozenset((model,)) for model in tied}
    for item in request.colocations:
        if item.mode == "hard":
            joined = frozenset().union(*(together[number[name]] for name in item.models))
            for model in joined:
                together[model] = joined
    blocks = sorted(set(together.values()), key=sorted)
    found: list[frozenset[int]] = []
    for count in range(len(blocks) + 1):
        for chosen in combinations(blocks, count):
            present = frozenset().union(*chosen)
            if len(present) <= MOST_ON_A_GPU:
                found.append(present)
            if len(found) > MOST_SETS:
                return None
        if count >= MOST_ON_A_GPU:
            break
    return tuple(found)


def separated_bytes(request: PlanRequest, present: frozenset[int]) -> float:
    """Bytes per request of the soft co-locations that a GPU with this presence tears apart."""
    names = {request.models[model].name for model in present}
    return sum(
        item.bytes_per_request
        for item in request.colocations
        if item.mode == "soft" and 0 < len(names.intersection(item.models)) < len(item.models)
    )


def one_each(
    counts: Mapping[int, Mapping[str, int]], slices: Mapping[str, int], gpus: int
) -> list[dict[int, str]]:
    """For each of `gpus` equal GPUs a slice profile for every model, from the models' counts by profile.

    Every model has at least `gpus` instances, and a profile no more than `slices` times `gpus` of
    them together. One representative a model and GPU always exists: models and profiles with
    `gpus` instances of each model form a bipartite multigraph, and such a graph has an edge
    colouring that spreads the edges at every node evenly over the colours, which are the GPUs
    (de Werra, 1971).
    """
    left: dict[int, dict[str, int]] = {}
    for model, mine in counts.items():
        left[model], missing = {}, gpus
        for profile in sorted(mine):
            left[model][profile] = min(mine[profile], missing)
            missing -= left[model][profile]
    dealt = []
    for rest in range(gpus - 1, -1, -1):
        choice = _pick(sorted(left), left, dict(slices), slices, rest)
        assert choice is not None
        for model, profile in choice.items():
            left[model][profile] -= 1
        dealt.append(choice)
    return dealt


def _pick(
    models: Sequence[int],
    left: Mapping[int, dict[str, int]],
    room: dict[str, int],
    slices: Mapping[str, int],
    rest: int,
) -> dict[int, str] | None:
    """A profile for each model within `room`, so that what is left still fits `rest` more GPUs."""
    if not models:
        return (
            {}
            if all(room[profile] <= spare for profile, spare in _spare(left, slices, rest).items())
            else None
        )
    model = models[0]
    for profile, count in left[model].items():
        if count > 0 and room[profile] > 0:
            room[profile] -= 1
            found = _pick(models[1:], left, room, slices, rest)
            room[profile] += 1
            if found is not None:
                return {model: profile, **found}
    return None


def _spare(left: Mapping[int, Mapping[str, int]], slices: Mapping[str, int], rest: int) -> dict[str, int]:
    """How much room a profile may have left on this GPU, so that the other GPUs take what remains."""
    spare = {}
    for profile, most in slices.items():
        total = sum(mine.get(profile, 0) for mine in left.values())
        # This GPU takes most − room of them; the others take `rest` · most at most.
        spare[profile] = most - max(0, total - rest * most)
    return spare
