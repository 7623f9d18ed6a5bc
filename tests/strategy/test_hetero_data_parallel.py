"""Fleets of several kinds of nodes: equal to every set of entries with every division of the batch."""

from __future__ import annotations

import random
import time
from itertools import combinations, product

import pytest

from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.batch_split import best_split
from torchsplit_core.strategy.search.hetero_data_parallel import (
    HeteroDataParallelSearch,
    NodeGroup,
    cross_group_sync_s,
)
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    StrategySolver,
    TransformerSizes,
)
from torchsplit_core.values.training import TrainingJob

SMALL = TransformerSizes(12, 1024, 16, 16, 4096, 32000, 1024)
FLEETS = {
    "two kinds": (StrategyNodes(1, 4, "A100-40GB"), StrategyNodes(1, 2, "T4-16GB")),
    "three kinds": (
        StrategyNodes(1, 2, "H100-SXM5-80GB"),
        StrategyNodes(2, 1, "A100-40GB"),
        StrategyNodes(1, 2, "L4-24GB"),
    ),
    "slow link": (StrategyNodes(1, 2, "A100-80GB", None, 0.5), StrategyNodes(1, 2, "A100-40GB")),
    "with a host": (StrategyNodes(1, 1, "T4-16GB"), StrategyNodes(1, 1, "CPU-64c")),
}


def asked(fleet: str, batch: int = 13, **fix: object) -> StrategyRequest:
    return StrategyRequest(
        SMALL,
        FLEETS[fleet],
        TrainingJob(batch, "fp16"),
        StrategyFix(**fix),  # type: ignore[arg-type]
    )


def entries_of(request: StrategyRequest) -> tuple[NodeGroup, ...]:
    machines = read_fleet(request.fleet, request.training.precision)
    return tuple(
        NodeGroup(
            one,
            SearchSpace(SMALL.transformer(), request.training, one.cluster.gpus_per_node, request.fix),
        )
        for one in machines
    )


def every(entries: tuple[NodeGroup, ...], batch: int) -> list[float]:
    """The least step of every set of entries, fastest first, by every division of the batch."""
    model, steps = SMALL.transformer(), []
    for count in range(1, len(entries) + 1):
        for chosen in combinations(entries, count):
            divisions = (parts for parts in product(range(1, batch + 1), repeat=count) if sum(parts) == batch)
            longest = min(
                max(one.seconds(part) for one, part in zip(chosen, parts, strict=True)) for parts in divisions
            )
            steps.append(longest + cross_group_sync_s(chosen, model))
    return sorted(step for step in steps if step < float("inf"))


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("batch", [7, 24])
def test_the_search_is_equal_to_every_set_with_every_division(fleet: str, batch: int) -> None:
    request = asked(fleet, batch)
    found = HeteroDataParallelSearch(
        entries_of(request), SMALL.transformer(), batch, time.monotonic() + 600
    ).run(10)
    steps = every(entries_of(request), batch)
    assert [one.seconds for one in found.best] == pytest.approx(steps, rel=1e-12)
    assert found.proven and found.bound_s == found.best[0].seconds
    for one in found.best:
        assert sum(one.parts) == batch and min(one.parts) > 0


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
def test_no_part_is_faster_than_its_bound(fleet: str) -> None:
    for entry in entries_of(asked(fleet, 40)):
        assert entry.least > 0
        for part in range(1, 41):
            assert entry.seconds(part) >= part * entry.least


def test_shares_are_equal_to_a_look_at_every_division() -> None:
    dice = random.Random(5)
    for _ in range(200):
        batch = dice.randint(2, 12)
        times = [
            {part: dice.choice((1.0, 2.0, 3.5, 7.0)) for part in range(1, batch) if dice.random() < 0.6}
            for _ in range(dice.randint(1, 3))
        ]
        divisions = [
            (max(times[k][part] for k, part in enumerate(parts)), parts)
            for parts in product(*times)
            if sum(parts) == batch
        ]
        found = best_split(times, batch)
        if not divisions:
            assert found is None
            continue
        assert found is not None and found[0] == min(divisions)[0]
        assert sum(found[1]) == batch
        assert max(times[k][part] for k, part in enumerate(found[1])) == found[0]


def test_a_faster_kind_gets_more_of_the_batch_and_every_entry_says_what_it_does() -> None:
    outcome = search_strategy(asked("two kinds", 512))
    best = outcome.candidates[0]
    assert outcome.status == "optimal" and outcome.bound_s == best.seconds_per_step
    assert [one.type for one in best.stages] == ["A100-40GB", "T4-16GB"]
    fast, slow = best.stages
    assert fast.sequences > 3 * slow.sequences and fast.sequences + slow.sequences == 512
    assert best.devices == 6 and best.memory_gib.total == pytest.approx(max(fast.memory_gib, slow.memory_gib))
    for one in best.stages:
        assert one.batch_per_device * one.data == one.sequences
        assert sum(one.layers_per_stage) == 12 and len(one.layers_per_stage) == one.stages
        assert one.seconds < best.seconds_per_step
    assert sum(vars_of(best.parts_s)) == pytest.approx(best.seconds_per_step)
    alone = search_strategy(StrategyRequest(SMALL, FLEETS["two kinds"][:1], TrainingJob(512, "fp16")))
    assert best.seconds_per_step < alone.candidates[0].seconds_per_step


def vars_of(parts: object) -> list[float]:
    return [getattr(parts, name) for name in parts.__dataclass_fields__]  # type: ignore[attr-defined]


def test_a_host_without_use_is_left_out_and_it_says_why() -> None:
    outcome = search_strategy(asked("with a host", 8))
    assert [one.type for one in outcome.candidates[0].stages] == ["T4-16GB"]
    assert "fleet[1], CPU-64c is left out: a sequence takes" in outcome.message


def test_a_host_beside_a_weak_card_gets_its_part() -> None:
    outcome = search_strategy(asked("with a host", 512))
    assert [one.type for one in outcome.candidates[0].stages] == ["T4-16GB", "CPU-64c"]


def test_out_of_time_the_bound_is_below_the_best() -> None:
    request = asked("three kinds", 512)
    search = HeteroDataParallelSearch(entries_of(request), SMALL.transformer(), 512, 0.0)
    found = search.run(1)
    assert found.best and not found.proven
    assert 0.5 * found.best[0].seconds < found.bound_s < found.best[0].seconds


def test_a_fix_holds_for_every_entry() -> None:
    outcome = search_strategy(asked("two kinds", 16, tensor=2, recompute="full"))
    assert all(one.tensor == 2 and one.recompute == "full" for one in outcome.candidates[0].stages)
    with pytest.raises(InputFault, match=r"fix\.tensor"):
        search_strategy(asked("two kinds", 16, tensor=3))
    with pytest.raises(InputFault, match="tensor 1, sequence_parallel True"):
        search_strategy(asked("two kinds", 16, tensor=1, sequence_parallel=True))
    # Four devices, which one entry has, do not divide into more than that.
    assert search_strategy(asked("two kinds", 16, tensor=4)).candidates[0].stages[0].devices == 4


def test_where_no_entry_holds_the_model_it_says_what_each_lacks() -> None:
    large = TransformerSizes(80, 8192, 64, 8, 28672, 128256, 4096, gated=True)
    outcome = search_strategy(
        StrategyRequest(large, FLEETS["two kinds"], TrainingJob(16, "fp16"), solver=StrategySolver(5.0))
    )
    assert outcome.status == "infeasible" and outcome.message.count("GiB more") == 3
    assert outcome.message.count("smallest fleet of") + outcome.message.count("No fleet of") == 2
