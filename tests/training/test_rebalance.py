"""When shares and passes change, by figures that a test makes up."""

from __future__ import annotations

import pytest

from torchsplit_core.training.rebalance.batch_balancer import MIN_INTERVAL_S, WINDOW_STEPS, BatchBalancer
from torchsplit_core.training.rebalance.memory_guard import (
    STEPS_BETWEEN,
    MemoryConfig,
    MemoryGuard,
    memory_config_of,
)
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob

pytestmark = pytest.mark.torch


def hear(
    balancer: BatchBalancer, counts: tuple[int, ...], a_sample: tuple[float, ...], steps: int = WINDOW_STEPS
) -> None:
    for _ in range(steps):
        balancer.record([count * one for count, one in zip(counts, a_sample, strict=True)], counts)


def test_samples_follow_the_speed() -> None:
    balancer = BatchBalancer(3, 16)
    hear(balancer, (6, 5, 5), (0.1, 0.2, 0.2), WINDOW_STEPS - 1)
    assert balancer.propose(0.0, (6, 5, 5)) is None, "a speed is the median of five steps"
    hear(balancer, (6, 5, 5), (0.1, 0.2, 0.2), 1)
    assert balancer.propose(0.0, (6, 5, 5)) == (8, 4, 4)


def test_a_change_is_made_once_a_minute_and_only_where_it_is_worth_it() -> None:
    balancer = BatchBalancer(2, 16)
    hear(balancer, (8, 8), (0.1, 0.108))
    assert balancer.propose(0.0, (8, 8)) is None, "a tenth less is the least"
    hear(balancer, (8, 8), (0.1, 0.3))
    assert balancer.propose(1.0, (8, 8)) == (12, 4)
    hear(balancer, (12, 4), (0.3, 0.1))
    assert balancer.propose(1.0 + MIN_INTERVAL_S - 0.1, (12, 4)) is None
    assert balancer.propose(1.0 + MIN_INTERVAL_S, (12, 4)) == (4, 12)


def test_one_slow_step_changes_nothing_and_no_rank_is_left_without_a_sample() -> None:
    balancer = BatchBalancer(2, 8)
    hear(balancer, (4, 4), (0.1, 0.1))
    hear(balancer, (4, 4), (0.1, 5.0), 2)
    assert balancer.propose(0.0, (4, 4)) is None
    hear(balancer, (4, 4), (0.1, 5.0))
    assert balancer.propose(0.0, (4, 4)) == (7, 1)
    balancer.record([1.0, 0.0], [8, 0])
    assert not balancer.ready


def test_passes_become_smaller_where_little_memory_is_free_and_not_in_every_step() -> None:
    guard = MemoryGuard()
    assert guard.propose(1, (0.5, 0.06), 8) is None
    assert guard.propose(2, (0.5, 0.04), 7) == 4
    assert guard.propose(2 + STEPS_BETWEEN - 1, (0.04,), 4) is None
    assert guard.propose(2 + STEPS_BETWEEN, (0.04,), 4) == 2
    assert guard.propose(100, (0.0,), 1) is None


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_what_gives_way_to_memory_is_the_pass_and_then_what_is_kept_of_it(recompute: str) -> None:
    choices = ParallelConfig(data=2, micro_batch=64, recompute=recompute)  # type: ignore[arg-type]
    found = [memory_config_of(RunStrategy(choices, TrainingJob(9, "fp32")))]
    while following := found[-1].reduced():
        found.append(following)
    assert [one.micro_batch for one in found] == [5, 3, 2, 1, 1]
    assert found[-2:] == [MemoryConfig(1, recompute), MemoryConfig(1, "full")]  # type: ignore[arg-type]
    assert found[-1].describe() == "passes of at most 1 samples, each layer computed again"
