"""Which members of co-locations can stand on one GPU together, and how to deal them out.

A GPU's presence is the set of these members (models, or stages of theirs) that have a slice on it. Counting GPUs
by layout and presence instead of naming them is exact: see `one_each`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from torchsplit_core.planning.request.ties import Ties

MOST_ON_A_GPU = 8
"""No layout of the catalogue has more slices, so no more members can need one."""

MOST_SETS = 256
"""Presences beyond which every GPU is told apart instead."""


def colocation_sets(ties: Ties) -> tuple[frozenset[int], ...] | None:
    """Every set of members that the hard co-locations allow on one GPU; None: too many.

    A model that is a member is there wherever a stage of it is.
    """
    together: dict[int, frozenset[int]] = {number: frozenset((number,)) for number in sorted(ties.numbers)}
    for tie in ties.ties:
        if tie.hard:
            joined = frozenset().union(*(together[number] for number in tie.members))
            for number in joined:
                together[number] = joined
    blocks = sorted(set(together.values()), key=sorted)
    found: dict[frozenset[int], None] = {}
    for count in range(len(blocks) + 1):
        for chosen in combinations(blocks, count):
            present = _closed(ties, together, frozenset().union(*chosen))
            if len(ties.needed(present)) <= MOST_ON_A_GPU:
                found[present] = None
            if len(found) > MOST_SETS:
                return None
        if count >= MOST_ON_A_GPU:
            break
    return tuple(found)


def _closed(ties: Ties, together: Mapping[int, frozenset[int]], present: frozenset[int]) -> frozenset[int]:
    """These with the models of their stages, and with whom those must stand."""
    while True:
        larger = present.union(*(together[number] for number in ties.implied(present)))
        if larger == present:
            return present
        present = larger


def one_each(
    counts: Mapping[int, Mapping[str, int]], slices: Mapping[str, int], gpus: int
) -> list[dict[int, str]]:
    """For each of `gpus` equal GPUs a slice profile for every member, from the members' counts by profile.

    Every member has at least `gpus` instances, none of which is another's too, and a profile no more than
    `slices` times `gpus` of them together. One representative a member and GPU always exists: members and
    profiles with `gpus` instances of each member form a bipartite multigraph, and such a graph has an edge
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
