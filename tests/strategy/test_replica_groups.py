"""Groups of entries beside each other: equal to every division into groups with every part of the batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from tests.support.strategy.pipelines import TIGHT, every
from torchsplit_core.files import read_text, write_text
from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.hetero_data_parallel import NodeGroup, cross_group_sync_s
from torchsplit_core.strategy.search.hetero_pipeline.branch_and_bound import DevicePool
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.replica_groups import ReplicaGroupSearch
from torchsplit_core.strategy.search.replica_groups_outcome import broken_groups_rule
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    StrategySolver,
    TransformerSizes,
)
from torchsplit_core.values.training import TrainingJob

LOOSE = TransformerSizes(4, 1024, 16, 16, 4096, 32000, 512)


def nodes(kind: str, count: int = 1) -> StrategyNodes:
    return StrategyNodes(1, count, kind, None, 400.0)


CASES = {
    "copies beside a pipeline": (TIGHT, (nodes("A100-40GB"), nodes("T4-16GB"), nodes("L4-24GB")), 5),
    "two pairs": (
        TIGHT,
        (nodes("L4-24GB"), nodes("L4-24GB"), nodes("T4-16GB"), nodes("T4-16GB")),
        4,
    ),
    "parts of more than one": (LOOSE, (nodes("A100-40GB", 2), nodes("T4-16GB"), nodes("L4-24GB")), 18),
}
FIX = StrategyFix(offload="none", shard="none", recompute="full")


def request_of(name: str) -> StrategyRequest:
    model, fleet, batch = CASES[name]
    return StrategyRequest(model, fleet, TrainingJob(batch, "fp16"), FIX)


def entries_of(request: StrategyRequest) -> tuple[NodeGroup, ...]:
    assert isinstance(request.model, TransformerSizes)
    sizes, job = request.model.transformer(), request.training
    return tuple(
        NodeGroup(one, SearchSpace(sizes, job, one.cluster.gpus_per_node, request.fix))
        for one in read_fleet(request.fleet, request.training.precision)
    )


def stock_of(entries: tuple[NodeGroup, ...]) -> DevicePool:
    return DevicePool([entry.search for entry in entries])


def divided(places: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to put each place into a group, or into none."""
    if not places:
        yield []
        return
    first, *rest = places
    for division in divided(rest):
        yield division
        yield [(first,), *division]
        for number, group in enumerate(division):
            yield [*division[:number], (first, *group), *division[number + 1 :]]


def least_of_all(entries: tuple[NodeGroup, ...], batch: int) -> float:
    """The least step of all groups beside each other, of which one is a pipeline, by every part of the batch."""
    space = entries[0].search.space

    @cache
    def seconds(group: tuple[int, ...], part: int) -> float:
        searches = [entry.search.with_batch(part) for entry in entries]
        if len(group) > 1:
            return every(searches, group, batch) if part % max(1, batch // 8) == 0 else float("inf")
        search = searches[group[0]]
        steps = (search.estimate(choices) for choices in search.space.choices(search.machine.devices))
        return min((step.seconds for step in steps if step.fits), default=float("inf"))

    least = float("inf")
    for division in divided(list(range(len(entries)))):
        if len(division) < 2 or max(len(group) for group in division) < 2:
            continue
        taking = [entries[place] for group in division for place in group]
        exchange = cross_group_sync_s(taking, space.model, len(division))
        for parts in product(range(1, batch), repeat=len(division)):
            if sum(parts) == batch:
                longest = max(seconds(group, part) for group, part in zip(division, parts, strict=True))
                least = min(least, longest + exchange)
    return least


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_search_is_equal_to_every_division_into_groups(name: str) -> None:
    entries, batch = entries_of(request_of(name)), CASES[name][2]
    search = ReplicaGroupSearch(entries, stock_of(entries))
    search.run(time.monotonic() + 600)
    assert search.best is not None and search.proven
    assert search.best.seconds == pytest.approx(least_of_all(entries, batch), rel=1e-9)
    assert broken_groups_rule(search.best, entries) == ""
    # What no groups beat is told without a look at many of them.
    other = ReplicaGroupSearch(entries, stock_of(entries))
    other.run(time.monotonic() + 600, known_s=search.best.seconds)
    assert other.best is None and other.proven


def test_two_of_a_kind_beside_two_of_another_are_two_pipelines() -> None:
    request = replace(request_of("two pairs"), training=TrainingJob(32, "fp16"))
    outcome = search_strategy(replace(request, solver=StrategySolver(600.0)))
    best = outcome.candidates[0]
    assert outcome.status == "optimal" and outcome.bound_s == best.seconds_per_step
    assert best.beside and not best.across and best.devices == 4
    assert sorted({one.group for one in best.stages}) == [1, 2]
    for group in (1, 2):
        own = [one for one in best.stages if one.group == group]
        assert {one.type for one in own} == {"L4-24GB", "T4-16GB"}
        assert sum(sum(one.layers_per_stage) for one in own) == 6
        assert {one.sequences for one in own} == {16}
    parts = [getattr(best.parts_s, name) for name in best.parts_s.__dataclass_fields__]
    assert sum(parts) == pytest.approx(best.seconds_per_step, rel=1e-9) and min(parts) >= 0
    assert outcome.message.startswith("Groups beside each other: 16 sequences by a pipeline across entries")
    assert "without groups (one pipeline across entries) a step takes" in outcome.message
    assert outcome.candidates[1].across
    assert outcome.candidates[1].seconds_per_step > best.seconds_per_step
    assert read_text(write_text(outcome)) == ("torchsplit.strategy", outcome)


def test_groups_that_were_tampered_with_break_a_rule() -> None:
    entries = entries_of(request_of("copies beside a pipeline"))
    search = ReplicaGroupSearch(entries, stock_of(entries))
    search.run(time.monotonic() + 600)
    good = search.best
    assert good is not None
    first, *rest = good.groups
    more = replace(first, sequences=first.sequences + 1)
    assert "are the batch" in broken_groups_rule(replace(good, groups=(more, *rest)), entries)
    assert "each entry in one" in broken_groups_rule(replace(good, groups=(first, first)), entries)
    faster = tuple(replace(group, seconds=group.seconds / 2) for group in good.groups)
    assert "it takes what its" in broken_groups_rule(replace(good, groups=faster), entries)
    assert "longest group's" in broken_groups_rule(replace(good, seconds=good.seconds / 2), entries)
    piped = next(group for group in good.groups if group.pipeline)
    moved = replace(piped, entries=tuple(place for place in range(3) if place not in piped.entries))
    others = [group for group in good.groups if group is not piped]
    assert broken_groups_rule(replace(good, groups=(moved, *others)), entries)


def test_out_of_time_groups_leave_a_bound() -> None:
    entries = entries_of(replace(request_of("two pairs"), training=TrainingJob(64, "fp16")))
    search = ReplicaGroupSearch(entries, stock_of(entries))
    search.run(time.monotonic(), known_s=1e3)
    assert search.best is None and not search.proven and 0 < search.bound_s < 1e3
    # As long as no step is known the time does not count.
    other = ReplicaGroupSearch(entries, stock_of(entries))
    other.run(time.monotonic())
    assert other.best is not None
    assert other.proven or other.bound_s < other.best.seconds
    known = search_strategy(
        replace(request_of("two pairs"), training=TrainingJob(64, "fp16"), solver=StrategySolver(1e-3))
    )
    assert known.status == "feasible" and known.bound_s is not None
    assert known.bound_s < known.candidates[0].seconds_per_step


def test_two_entries_have_no_groups_of_which_one_is_a_pipeline() -> None:
    entries = entries_of(request_of("two pairs"))[1:3]
    search = ReplicaGroupSearch(entries, stock_of(entries))
    search.run(time.monotonic())
    assert search.best is None and search.proven
