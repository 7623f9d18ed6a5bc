"""Hard co-locations among models that each run by one chosen variant: blocks of models that share their GPUs.

Stages of other variants do not run. A co-location whose members all run binds their models to one block; one without
a running member binds nobody; if some of its members cannot run, none may: their models are not served. A block with
stages in co-locations goes to a GPU whole, with every stage of its models, which is stricter than required.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torchsplit_core.planning.request.colocation_index import ColocationMember, members_of
from torchsplit_core.values import PlanRequest

Chosen = TypeVar("Chosen")


@dataclass(frozen=True, slots=True)
class ColocationBlocks:
    """By model: the models bound to it (itself included), and whether each of their GPUs has all of their stages."""

    partners: tuple[frozenset[int], ...]
    whole_variant: tuple[bool, ...]

    def is_bound(self, model: int) -> bool:
        """Whether it restricts the GPUs of the model's instances."""
        return len(self.partners[model]) > 1 or self.whole_variant[model]


def settle_variants(
    request: PlanRequest,
    chosen: Sequence[Chosen | None],
    variant_of: Callable[[Chosen], int],
    choose_again: Callable[[int, int], Chosen | None],
) -> tuple[Chosen | None, ...]:
    """The choices with which every hard co-location can be kept; None: the model is not served.

    `choose_again` chooses how a model runs by a given variant; it is called if a co-location names a stage of another
    variant than the chosen one and only some of its members run.
    """
    settled = list(chosen)

    def is_served(member: ColocationMember) -> bool:
        choice = settled[member.model]
        return choice is not None and member.variant in (None, variant_of(choice))

    hard = _hard_colocations(request)
    for members in hard:
        for member in members:
            if any(map(is_served, members)) and not is_served(member) and member.variant is not None:
                settled[member.model] = choose_again(member.model, member.variant) or settled[member.model]
    while True:
        unplaceable = {
            member.model
            for members in hard
            if not all(map(is_served, members))
            for member in members
            if is_served(member)
        }
        if not unplaceable:
            return tuple(settled)
        for model in unplaceable:
            settled[model] = None


def build_blocks(request: PlanRequest, variants: Sequence[int | None]) -> ColocationBlocks:
    """The blocks of models that run by these settled variants (None: not at all)."""
    partners = {index: frozenset((index,)) for index in range(len(request.models))}
    staged: set[int] = set()
    for members in _hard_colocations(request):
        if any(variants[m.model] is None or m.variant not in (None, variants[m.model]) for m in members):
            continue
        joined = frozenset().union(*(partners[member.model] for member in members))
        for model in joined:
            partners[model] = joined
        if any(member.variant is not None for member in members):
            staged |= joined
    return ColocationBlocks(
        tuple(partners[index] for index in range(len(request.models))),
        tuple(not staged.isdisjoint(partners[index]) for index in range(len(request.models))),
    )


def _hard_colocations(request: PlanRequest) -> list[tuple[ColocationMember, ...]]:
    return [
        members_of(request.models, item, "colocations") for item in request.colocations if item.mode == "hard"
    ]
