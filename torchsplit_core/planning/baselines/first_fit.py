"""First fit, as a scheduler without a plan: one model after the other, on the first GPU with room.

Models come in the request's order. Each takes the smallest slice that covers the rest of its demand, else the largest
with room, until its demand is met or no GPU has room. Placed models are not moved, and spare slices stay free.
"""

from __future__ import annotations

from torchsplit_core.planning.baselines.best_fit import target_rates
from torchsplit_core.planning.baselines.greedy import RATE_SLACK, GreedyPlacement, SliceOption
from torchsplit_core.values import PlanRequest


def first_fit(request: PlanRequest, greedy: GreedyPlacement) -> GreedyPlacement:
    """Fill an empty fleet. Models of a hard co-location are placed together, by the rule of `GreedyPlacement`."""
    for model, target_rps in target_rates(request, greedy, 1.0).items():
        while greedy.rate(model) < target_rps * (1 - RATE_SLACK):
            served = (
                greedy.add_instance(model)
                if greedy.blocks.is_bound(model)
                else _add_instance(greedy, model, target_rps)
            )
            if not served:
                break
    return greedy


def _add_instance(greedy: GreedyPlacement, model: int, target_rps: float) -> bool:
    """One more instance of the slowest stage, or of every stage at the start; False without room."""
    rates = greedy.rates[model]
    stages = (
        [min(range(len(rates)), key=rates.__getitem__)] if greedy.rate(model) > 0 else list(range(len(rates)))
    )
    before, placed = list(rates), list[int]()
    for stage in stages:
        location = _first_room(greedy, model, stage, target_rps - rates[stage])
        if location is None:
            # A model without all of its stages serves no requests.
            for gpu in reversed(placed):
                greedy.partial.undo(gpu)
            greedy.rates[model] = before
            return False
        option, gpu = location
        greedy.place(model, stage, option, gpu)
        placed.append(gpu)
    return True


def _first_room(
    greedy: GreedyPlacement, model: int, stage: int, rest_rps: float
) -> tuple[SliceOption, int] | None:
    """The slice to take and its GPU: the first GPU with room for any of the stage's slices."""
    chosen = greedy.chosen[model]
    assert chosen is not None
    enough = [option for option in chosen.stages[stage] if option.rate_rps >= rest_rps * (1 - RATE_SLACK)]
    smaller = [option for option in chosen.stages[stage] if option not in enough]
    wanted = [
        *sorted(enough, key=lambda option: (option.cost, -option.rate_rps)),
        *sorted(smaller, key=lambda option: -option.rate_rps),
    ]
    places = [
        (gpu, rank, option)
        for rank, option in enumerate(wanted)
        if (gpu := greedy.partial.first_with_room(option.group, option.profile)) is not None
    ]
    if not places:
        return None
    gpu, _, option = min(places, key=lambda place: place[:2])
    return option, gpu
