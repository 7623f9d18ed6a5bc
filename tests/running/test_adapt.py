"""When shares and passes change, by figures that a test makes up."""

from __future__ import annotations

import pytest

from torchsplit_core.running.adapt.memory import STEPS_BETWEEN, Guard, Setting, setting_of
from torchsplit_core.running.adapt.speed import LEAST_S, STEPS, Balancer
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import Choices, TrainingJob

pytestmark = pytest.mark.torch


def hear(
    balancer: Balancer, counts: tuple[int, ...], a_sample: tuple[float, ...], steps: int = STEPS
) -> None:
    for _ in range(steps):
        balancer.heard([count * one for count, one in zip(counts, a_sample, strict=True)], counts)


def test_samples_follow_the_speed() -> None:
    balancer = Balancer(3, 16)
    hear(balancer, (6, 5, 5), (0.1, 0.2, 0.2), STEPS - 1)
    assert balancer.better(0.0, (6, 5, 5)) is None, "a speed is the median of five steps"
    hear(balancer, (6, 5, 5), (0.1, 0.2, 0.2), 1)
    assert balancer.better(0.0, (6, 5, 5)) == (8, 4, 4)


def test_a_change_is_made_once_a_minute_and_only_where_it_is_worth_it() -> None:
    balancer = Balancer(2, 16)
    hear(balancer, (8, 8), (0.1, 0.108))
    assert balancer.better(0.0, (8, 8)) is None, "a tenth less is the least"
    hear(balancer, (8, 8), (0.1, 0.3))
    assert balancer.better(1.0, (8, 8)) == (12, 4)
    hear(balancer, (12, 4), (0.3, 0.1))
    assert balancer.better(1.0 + LEAST_S - 0.1, (12, 4)) is None
    assert balancer.better(1.0 + LEAST_S, (12, 4)) == (4, 12)


def test_one_slow_step_changes_nothing_and_no_rank_is_left_without_a_sample() -> None:
    balancer = Balancer(2, 8)
    hear(balancer, (4, 4), (0.1, 0.1))
    hear(balancer, (4, 4), (0.1, 5.0), 2)
    assert balancer.better(0.0, (4, 4)) is None
    hear(balancer, (4, 4), (0.1, 5.0))
    assert balancer.better(0.0, (4, 4)) == (7, 1)
    balancer.heard([1.0, 0.0], [8, 0])
    assert not balancer.ready


def test_passes_become_smaller_where_little_memory_is_free_and_not_in_every_step() -> None:
    guard = Guard()
    assert guard.smaller(1, (0.5, 0.06), 8) is None
    assert guard.smaller(2, (0.5, 0.04), 7) == 4
    assert guard.smaller(2 + STEPS_BETWEEN - 1, (0.04,), 4) is None
    assert guard.smaller(2 + STEPS_BETWEEN, (0.04,), 4) == 2
    assert guard.smaller(100, (0.0,), 1) is None


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_what_gives_way_to_memory_is_the_pass_and_then_what_is_kept_of_it(recompute: str) -> None:
    choices = Choices(data=2, micro_batch=64, recompute=recompute)  # type: ignore[arg-type]
    found = [setting_of(RunStrategy(choices, TrainingJob(9, "fp32")))]
    while following := found[-1].next():
        found.append(following)
    assert [one.micro_batch for one in found] == [5, 3, 2, 1, 1]
    assert found[-2:] == [Setting(1, recompute), Setting(1, "full")]  # type: ignore[arg-type]
    assert found[-1].words() == "passes of at most 1 samples, each layer computed again"
