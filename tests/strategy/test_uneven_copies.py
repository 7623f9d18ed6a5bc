"""Copies of the model on unlike entries: equal to every set of entries with every division of the batch."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from itertools import combinations, product

import pytest

from tests.support.seeds import repeated
from torchsplit_core.strategy.cost_model.estimate import estimate
from torchsplit_core.strategy.search import search_strategy
from torchsplit_core.strategy.search.batch_split import best_split
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.strategy.search.software import SOFTWARE
from torchsplit_core.strategy.search.space import RECOMPUTES, SearchSpace
from torchsplit_core.strategy.search.uneven_copies import UnevenCopiesSearch, entry_exchange_s
from torchsplit_core.strategy.supported import Runnable, traits_of
from torchsplit_core.training import fit_to_world_size, run_strategy_of
from torchsplit_core.training.sampling import apportion_samples, count_micro_batches, split_micro_batches
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.request import (
    StrategyFix,
    StrategyNodes,
    StrategyRequest,
    TransformerSizes,
)
from torchsplit_core.values.training import ParallelConfig, TrainingJob

SMALL = TransformerSizes(12, 1024, 16, 16, 4096, 32000, 1024)
FLEETS = {
    "two kinds": (StrategyNodes(1, 4, "A100-40GB"), StrategyNodes(1, 2, "A10-24GB")),
    "three kinds": (
        StrategyNodes(1, 2, "H100-SXM5-80GB"),
        StrategyNodes(2, 1, "A100-40GB"),
        StrategyNodes(1, 2, "L4-24GB"),
    ),
    "slow link": (StrategyNodes(1, 2, "A100-80GB", None, 0.5), StrategyNodes(1, 2, "A100-40GB")),
    "with a host": (StrategyNodes(1, 1, "T4-16GB"), StrategyNodes(1, 1, "CPU-64c")),
}


def asked(fleet: str, batch: int = 24, **fix: object) -> StrategyRequest:
    return StrategyRequest(
        SMALL,
        FLEETS[fleet],
        TrainingJob(batch, "fp32"),
        StrategyFix(**fix),  # type: ignore[arg-type]
    )


def searches_of(request: StrategyRequest) -> list[HomogeneousSearch]:
    runnable = Runnable(request.training.precision, traits_of(request.model))
    return [
        HomogeneousSearch(
            machine,
            SearchSpace(
                SMALL.transformer(), request.training, machine.cluster.gpus_per_node, request.fix, runnable
            ),
        )
        for machine in read_fleet(request.fleet, request.training.precision)
    ]


def seconds(search: HomogeneousSearch, recompute: str, passes: int, each: int) -> float:
    machine, job = (
        search.machine,
        replace(search.space.job, global_batch=search.machine.devices * passes * each),
    )
    choices = ParallelConfig(machine.devices, micro_batch=each, recompute=recompute)  # type: ignore[arg-type]
    step = estimate(search.space.model, machine.device, machine.cluster, choices, job, SOFTWARE)
    return step.seconds if step.fits else float("inf")


def every(searches: list[HomogeneousSearch], batch: int) -> list[float]:
    """The least step of every set of two entries or more, fastest first, by every division of the batch."""
    steps = []
    for count in range(2, len(searches) + 1):
        for chosen in combinations(searches, count):
            least = float("inf")
            for recompute, passes in product(RECOMPUTES, range(1, batch + 1)):
                for sizes in product(range(1, batch + 1), repeat=count):
                    devices = [search.machine.devices for search in chosen]
                    if sum(own * passes * size for own, size in zip(devices, sizes, strict=True)) == batch:
                        own = [
                            seconds(search, recompute, passes, size)
                            for search, size in zip(chosen, sizes, strict=True)
                        ]
                        least = min(least, max(own))
            steps.append(least + entry_exchange_s(chosen, SMALL.transformer()))
    return sorted(step for step in steps if step < float("inf"))


@pytest.mark.slow
@pytest.mark.parametrize("fleet", FLEETS)
@repeated("batch", [7, 24])
def test_the_search_is_equal_to_every_set_with_every_division(fleet: str, batch: int) -> None:
    searches = searches_of(asked(fleet, batch))
    result = UnevenCopiesSearch(searches).run(10, time.monotonic() + 600)
    assert [made.seconds for made in result.best] == pytest.approx(every(searches, batch), rel=1e-12)
    assert result.bound_s == float("inf")
    for made in result.best:
        assert sum(part.sequences for part in made.parts) == batch


def test_parts_are_equal_to_a_look_at_every_division() -> None:
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
        split = best_split(times, batch)
        if not divisions:
            assert split is None
            continue
        assert split is not None and split[0] == min(divisions)[0]
        assert sum(split[1]) == batch
        assert max(times[k][part] for k, part in enumerate(split[1])) == split[0]


def test_a_faster_kind_gets_more_of_the_batch_and_a_run_gives_each_rank_what_the_search_says() -> None:
    request = asked("two kinds", 512)
    outcome = search_strategy(request)
    best = outcome.candidates[0]
    assert outcome.status == "optimal" and outcome.bound_s == best.seconds_per_step
    assert [stage.type for stage in best.stages] == ["A100-40GB", "A10-24GB"]
    fast, slow = best.stages
    assert fast.sequences > 4 * slow.sequences and fast.sequences + slow.sequences == 512
    assert best.devices == 6 and best.memory_gib.total == pytest.approx(max(fast.memory_gib, slow.memory_gib))
    for stage in best.stages:
        assert stage.batch_per_device * stage.data == stage.sequences
        assert stage.layers_per_stage == (12,) and stage.seconds < best.seconds_per_step
    alone = search_strategy(replace(request, fleet=FLEETS["two kinds"][:1]))
    assert best.seconds_per_step < alone.candidates[0].seconds_per_step
    strategy = fit_to_world_size(run_strategy_of(best, precision="fp32"), 6)
    counts = apportion_samples(strategy.job.global_batch, 6, strategy.shares)
    assert counts == (fast.batch_per_device,) * 4 + (slow.batch_per_device,) * 2
    passes = count_micro_batches(counts, strategy.choices.micro_batch)
    assert passes == fast.batch_per_device // fast.micro_batch == best.micro_batches
    for stage, count in ((fast, counts[0]), (slow, counts[-1])):
        sizes = {len(part) for part in split_micro_batches(range(count), passes)}
        assert sizes == {stage.micro_batch}
    # On another number of ranks the shares say nothing.
    assert fit_to_world_size(strategy, 3).shares == ()


def test_an_entry_without_use_is_left_out_and_it_says_why() -> None:
    weak = (StrategyNodes(1, 1, "T4-16GB"), StrategyNodes(1, 1, "CPU-2c"))
    outcome = search_strategy(replace(asked("with a host", 8), fleet=weak))
    assert [stage.type for stage in outcome.candidates[0].stages] == ["T4-16GB"]
    assert "fleet[1], CPU-2c is left out: with it a step is not shorter" in outcome.message
    helped = search_strategy(asked("with a host", 512))
    assert [stage.type for stage in helped.candidates[0].stages] == ["T4-16GB", "CPU-64c"]


def test_out_of_time_the_bound_is_below_the_best() -> None:
    search = UnevenCopiesSearch(searches_of(asked("three kinds", 512)))
    whole = search.run(1, time.monotonic() + 600)
    stopped = search.run(1, 0.0, 10 * whole.best[0].seconds)
    assert not stopped.best and 0.5 * whole.best[0].seconds < stopped.bound_s <= whole.best[0].seconds


def test_a_fix_holds_for_every_entry() -> None:
    outcome = search_strategy(asked("two kinds", 16, tensor=2, recompute="full"))
    stages = [stage for stage in outcome.candidates for stage in stage.stages]
    assert stages and all(stage.tensor == 2 and stage.recompute == "full" for stage in stages)
    (made,) = UnevenCopiesSearch(searches_of(asked("two kinds", 96, micro_batch=2))).run(5, 0.0).best
    assert [part.choices.micro_batch for part in made.parts] == [2, 2]
    for fix in ({"shard": "fsdp"}, {"tensor": 2}, {"data": 4}):
        assert not UnevenCopiesSearch(searches_of(asked("two kinds", 96, **fix))).run(5, 0.0).best
    with pytest.raises(InputFault, match=r"fix\.tensor"):
        search_strategy(asked("two kinds", 16, tensor=3))
    with pytest.raises(InputFault, match="tensor 1, sequence_parallel True"):
        search_strategy(asked("two kinds", 16, tensor=1, sequence_parallel=True))
    # Four devices, which one entry has, do not divide into more than that.
    assert search_strategy(asked("two kinds", 16, tensor=4)).candidates[0].stages[0].devices == 4


def test_where_no_entry_holds_the_model_it_says_what_each_lacks() -> None:
    large = TransformerSizes(80, 8192, 64, 8, 28672, 128256, 4096, gated=True)
    outcome = search_strategy(StrategyRequest(large, FLEETS["two kinds"], TrainingJob(16, "fp32")))
    assert outcome.status == "infeasible" and outcome.message.count("GiB more") == 2
    assert outcome.message.count("smallest fleet of") + outcome.message.count("No fleet of") == 2
