"""How blocks are dealt out to stages, and when they move, by figures that a test makes up."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from random import Random

import pytest

from tests.support.seeds import in_blocks
from torchsplit_core.strategy.graph_model.stage_partition import best_layers
from torchsplit_core.training.pipeline.blocks import BlockCosts, ranges_of
from torchsplit_core.training.rebalance.batch_balancer import WINDOW_STEPS
from torchsplit_core.training.rebalance.stage_balancer import StageBalancer, StageMove
from torchsplit_core.training.rebalance.stage_times import StageTimes
from torchsplit_core.training.rebalance.step_report import RankReport

pytestmark = pytest.mark.torch


def blocks_of(count: int, loads: tuple[float, ...] = ()) -> BlockCosts:
    names = tuple(f"layers.{place}" for place in range(count))
    return BlockCosts(names, loads or (1.0,) * count, (1.0,) * count, (1000.0,) * count, (10.0,) * count)


def every_division(count: int, stages: int) -> list[tuple[int, ...]]:
    return [
        tuple(stop - first for first, stop in pairwise((0, *cuts, count)))
        for cuts in combinations(range(1, count), stages - 1)
    ]


@in_blocks("seed", range(200), kept=4)
def test_a_division_is_the_best_of_all(seed: int) -> None:
    """The longest stage, then the sum; stages of any speed, some of which have no room for many blocks."""
    random = Random(seed)
    count = random.randint(1, 9)
    stages = random.randint(1, count)
    work = [random.choice((1.0, 2.0, random.random())) for _ in range(count)]
    slow = [random.choice((1.0, 1.0, 3.0, random.uniform(1, 4))) for _ in range(stages)]
    room = [random.choice((count, random.randint(1, count))) for _ in range(stages)]

    def seconds(stage: int, first: int, stop: int) -> float:
        return slow[stage] * sum(work[first:stop]) if stop - first <= room[stage] else math.inf

    def value(layers: tuple[int, ...]) -> tuple[float, float]:
        taken = [seconds(stage, one.start, one.stop) for stage, one in enumerate(ranges_of(layers))]
        return max(taken), sum(taken)

    found = best_layers(count, stages, seconds)
    best = min(map(value, every_division(count, stages)))
    if best[0] == math.inf:
        assert found is None
    else:
        assert found is not None and sum(found) == count and min(found) >= 1
        assert value(found) == pytest.approx(best)


@in_blocks("seed", range(60), kept=2)
def test_no_division_takes_less_than_the_bound_of_all(seed: int) -> None:
    """Else a search would be left out that finds something."""
    random = Random(seed)
    processes, chunks = random.randint(1, 3), random.randint(1, 2)
    count = random.randint(processes * chunks, 8)
    layers = random.choice(every_division(count, processes * chunks))
    measured = StageTimes(
        blocks_of(count, tuple(random.choice((1.0, 2.0)) for _ in range(count))), layers, processes,
        tuple(random.uniform(0.1, 2) for _ in range(count)), random.random(), random.randint(1, 8), 4,
        (math.inf,) * processes,
    )  # fmt: skip
    taken = [measured.pipeline_s(measured.stages_s(one)) for one in every_division(count, len(layers))]
    assert measured.min_pipeline_s <= min(taken) * (1 + 1e-12)
    best = measured.best()
    assert best is not None and (chunks > 1 or measured.pipeline_s(measured.stages_s(best)) <= max(taken))


def hear(
    mover: StageBalancer,
    a_block: list[float],
    *,
    step_s: float,
    steps: int = WINDOW_STEPS,
    data: int = 1,
    limits: tuple[float, ...] = (),
    move_s: float = 1.0,
    begun_s: float = 0.0,
) -> list[RankReport]:
    """Steps of two micro-batches of four samples, in which the blocks take so long on the slowest of their ranks."""
    stage_of = [stage for stage, count in enumerate(mover.layers) for _ in range(count)]
    told = list[RankReport]()
    for step in range(steps + 1):
        told = [
            RankReport(
                0.0, 1.0, 0.0, 8.0, begun_s + step * step_s, 5000.0, 0.5, limit_bytes=limit, move_s=move_s,
                blocks_s=(
                    *(
                        (seconds if copy else seconds / 2) if stage_of[place] % mover.processes == process else 0.0
                        for place, seconds in enumerate(a_block)
                    ),
                    0.0,
                ),
            )
            for process, limit in zip(range(mover.processes), limits or (0.0,) * mover.processes, strict=True)
            for copy in range(2 - data, 2)
        ]  # fmt: skip
        if step:
            mover.record_step(told, 2, 4)
        else:
            mover.skip_step(told)
    return told


@pytest.mark.parametrize("data", [1, 2])
def test_a_block_leaves_the_slow_stage(data: int) -> None:
    """Rank 1 needs three times as long for the same blocks: 3 and 1 of 4, the longest stage 3 instead of 6."""
    mover = StageBalancer(blocks_of(4), (2, 2), 2)
    told = hear(mover, [1.0, 1.0, 3.0, 3.0], step_s=16.0, steps=WINDOW_STEPS - 1, data=data)
    assert mover.propose(told, 100) is None, "five steps are measured first"
    told = hear(mover, [1.0, 1.0, 3.0, 3.0], step_s=16.0, steps=1, data=data, begun_s=64.0)
    found = mover.propose(told, 100)
    assert isinstance(found, StageMove) and found.layers == (3, 1) and found.longest == 1
    assert found.what == "layers.2 from stage 1 to stage 0"
    # Two micro-batches: 2 · 6 + 2 of 16 s before, 2 · 3 + 3 and the other 2 s after.
    assert (found.step_s, found.predicted_s) == (16.0, 11.0)
    assert "takes 2, 6 s in the stages (measured), 3, 3 s are reckoned" in found.why
    assert "31% less" in found.why
    assert mover.propose(told, 100) is None, "it is measured anew"


def test_a_move_is_worth_what_it_takes_in_the_steps_that_are_left() -> None:
    """Five seconds a step are gained."""
    for steps_left, moves in ((3, True), (2, False), (0, False)):
        mover = StageBalancer(blocks_of(4), (2, 2), 2)
        told = hear(mover, [1.0, 1.0, 3.0, 3.0], step_s=16.0, move_s=10.0)
        assert (mover.propose(told, steps_left) is not None) == moves
    mover = StageBalancer(blocks_of(4), (2, 2), 2)
    told = hear(mover, [1.0, 1.0, 3.0, 3.0], step_s=16.0, move_s=math.inf)
    assert mover.propose(told, 10**9) is None, "the last move is less than a minute ago"
    mover = StageBalancer(blocks_of(4), (2, 2), 2)
    told = hear(mover, [1.0, 1.0, 3.0, 3.0], step_s=51.0)
    assert mover.propose(told, 10**9) is None, "less than a tenth of the step"


def test_one_slow_step_moves_nothing() -> None:
    mover = StageBalancer(blocks_of(4), (2, 2), 2)
    hear(mover, [1.0, 1.0, 1.0, 1.0], step_s=6.0, steps=3)
    told = hear(mover, [1.0, 1.0, 9.0, 9.0], step_s=38.0, steps=2, begun_s=18.0)
    assert mover.propose(told, 100) is None


def test_blocks_that_were_dealt_badly_move_too_and_a_heavy_one_is_no_slow_device() -> None:
    """Of equal devices: the last block, of a kind of its own, takes longer wherever it is."""
    mover = StageBalancer(blocks_of(5, (1.0, 1.0, 1.0, 1.0, 2.0)), (2, 3), 2)
    found = mover.propose(hear(mover, [1.0, 1.0, 1.0, 1.0, 3.5], step_s=13.0), 100)
    assert (
        found is not None
        and found.layers == (4, 1)
        and found.what == "layers.2 to layers.3 from stage 1 to stage 0"
    )
    assert "takes 2, 5.5 s in the stages (measured), 4, 3.5 s" in found.why


def test_chunks_of_a_process_count_together() -> None:
    """Stages 0 and 2 are on process 0, which is slow; the step is m · longest + the rest / 2."""
    mover = StageBalancer(blocks_of(8), (2, 2, 2, 2), 2)
    found = mover.propose(hear(mover, [3.0, 3.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0], step_s=26.0), 100)
    assert found is not None and found.layers == (1, 3, 1, 3)
    assert found.predicted_s == 2 * 6 + 6 / 2


def test_a_device_gets_no_more_than_fits() -> None:
    """A block needs at most 4 · 1000 bytes and what 2 · 4 samples keep: 4,080 beside 5,000 on a device."""
    slow = [1.0, 1.0, 3.0, 3.0]
    for limit, moves in ((9080.0 / 0.95 + 1, True), (9080.0 / 0.95 - 1, False), (4000.0, False)):
        mover = StageBalancer(blocks_of(4), (2, 2), 2)
        told = hear(mover, slow, step_s=16.0, limits=(limit, 6000.0))
        assert (mover.propose(told, 100) is not None) == moves
