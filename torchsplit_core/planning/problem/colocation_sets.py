"""Sets of co-located members that can share a GPU, and their distribution over equal GPUs.

A GPU's presence is the set of members (models, or stages of models) that have a slice on it. Counting GPUs by layout
and presence instead of naming them is exact: see `distribute_members`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from torchsplit_core.planning.request.colocation_index import ColocationIndex

MAX_MEMBERS_PER_GPU = 8
"""No layout of the catalogue has more slices, so no presence has more members."""

MAX_SETS = 256
"""Number of sets above which every GPU is modelled separately instead."""


def colocation_sets(colocation_index: ColocationIndex) -> tuple[frozenset[int], ...] | None:
    """Every set of members that the hard co-locations allow on one GPU; None: too many.

    A member that is a model is present wherever a stage of it is.
    """
    together: dict[int, frozenset[int]] = {
        number: frozenset((number,)) for number in sorted(colocation_index.members)
    }
    for colocation in colocation_index.colocations:
        if colocation.hard:
            joined = frozenset().union(*(together[number] for number in colocation.members))
            for number in joined:
                together[number] = joined
    blocks = sorted(set(together.values()), key=sorted)
    sets: dict[frozenset[int], None] = {}
    for count in range(len(blocks) + 1):
        for chosen in combinations(blocks, count):
            present = _closure(colocation_index, together, frozenset().union(*chosen))
            if len(colocation_index.minimal_members(present)) <= MAX_MEMBERS_PER_GPU:
                sets[present] = None
            if len(sets) > MAX_SETS:
                return None
        if count >= MAX_MEMBERS_PER_GPU:
            break
    return tuple(sets)


def _closure(
    colocation_index: ColocationIndex, together: Mapping[int, frozenset[int]], present: frozenset[int]
) -> frozenset[int]:
    """The members with the models of their stages, and all that must be with those."""
    while True:
        larger = present.union(*(together[number] for number in colocation_index.implied_models(present)))
        if larger == present:
            return present
        present = larger


def distribute_members(
    counts: Mapping[int, Mapping[str, int]], slices: Mapping[str, int], gpus: int
) -> list[dict[int, str]]:
    """For each of `gpus` equal GPUs a slice profile for every member, from the members' counts by profile.

    Every member has at least `gpus` instances, shared with no other member, and a profile has at most `slices` times
    `gpus` of them in all. An instance of each member on every GPU always exists: members and profiles, with `gpus`
    instances of each member as edges, form a bipartite multigraph, which has an edge colouring that spreads the edges
    at every node evenly over the colours, here the GPUs (de Werra, 1971).
    """
    left: dict[int, dict[str, int]] = {}
    for model, profile_counts in counts.items():
        left[model], missing = {}, gpus
        for profile in sorted(profile_counts):
            left[model][profile] = min(profile_counts[profile], missing)
            missing -= left[model][profile]
    by_gpu = []
    for rest in range(gpus - 1, -1, -1):
        choice = _pick_profiles(sorted(left), left, dict(slices), slices, rest)
        assert choice is not None
        for model, profile in choice.items():
            left[model][profile] -= 1
        by_gpu.append(choice)
    return by_gpu


def _pick_profiles(
    models: Sequence[int],
    left: Mapping[int, dict[str, int]],
    room: dict[str, int],
    slices: Mapping[str, int],
    rest: int,
) -> dict[int, str] | None:
    """A profile for each model within `room`, so that the rest still fits `rest` more GPUs."""
    if not models:
        return (
            {}
            if all(room[profile] <= spare for profile, spare in _spare_slices(left, slices, rest).items())
            else None
        )
    model = models[0]
    for profile, count in left[model].items():
        if count > 0 and room[profile] > 0:
            room[profile] -= 1
            rest_profiles = _pick_profiles(models[1:], left, room, slices, rest)
            room[profile] += 1
            if rest_profiles is not None:
                return {model: profile, **rest_profiles}
    return None


def _spare_slices(
    left: Mapping[int, Mapping[str, int]], slices: Mapping[str, int], rest: int
) -> dict[str, int]:
    """How many slices of a profile may stay free on this GPU so that the other GPUs take the rest."""
    spare = {}
    for profile, most in slices.items():
        total = sum(profile_counts.get(profile, 0) for profile_counts in left.values())
        # This GPU takes most − room of them; the others take at most `rest` · most.
        spare[profile] = most - max(0, total - rest * most)
    return spare
