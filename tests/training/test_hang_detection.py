"""Which rank is named when none moves, by marks and processes that a test makes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsplit_core.training.attempts.hang_detection import STARTUP_LIMIT_S, HangMonitor, HeartbeatWriter
from torchsplit_core.training.periodic import INTERVAL_S
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions


class Scene:
    """Two ranks of a node, a clock, and processes of which each has a state and seconds of work."""

    def __init__(self, folder: Path, limit_s: float | None = 5.0) -> None:
        self.now, self.states, self.busy_s = 0.0, {0: "S", 1: "S"}, {0: 0.0, 1: 0.0}
        self.markers = [HeartbeatWriter(folder, rank, "a") for rank in (0, 1)]
        self.turns = 0
        self.watch = HangMonitor(folder, "a", limit_s, lambda: self.now, self._process)

    def _process(self, pid: int) -> tuple[str, float]:
        # Both marks have this process's id; the watch asks in the order of the ranks.
        rank = self.turns % 2
        self.turns += 1
        return self.states[rank], self.busy_s[rank]

    def step(self, number: int, doing: str = "data") -> None:
        for marker in self.markers:
            marker(doing, number)
        self.watch.poll()

    def wait(self, seconds: float) -> list[tuple[int, str]]:
        """Who is named meanwhile."""
        found = []
        for _ in range(int(seconds / INTERVAL_S)):
            self.now += INTERVAL_S
            found += self.watch.poll()
        return [(hang.heartbeat.rank, hang.message) for hang in found]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    for number in (0, 1):
        made.step(number)
    return made


def test_the_rank_with_the_fewest_marks_is_named_once(scene: Scene) -> None:
    scene.markers[0]("backward pass", 1)
    assert scene.wait(5.0) == []
    (named,) = scene.wait(20.0)
    assert named[0] == 1 and "in 'data', the others wait for it" in named[1]


def test_the_rank_that_computes_is_named_where_all_have_come_as_far(scene: Scene) -> None:
    scene.wait(1.0)
    scene.busy_s[1] = 40.0
    ((rank, words),) = scene.wait(9.0)
    assert rank == 1 and "computes without end" in words


def test_all_are_ended_after_twice_the_limit_where_nothing_tells(scene: Scene) -> None:
    assert scene.wait(10.0) == []
    assert [rank for rank, _ in scene.wait(1.5)] == [0, 1]


@pytest.mark.slow
def test_storage_a_first_step_and_a_slow_one_are_no_stalls(tmp_path: Path) -> None:
    scene = Scene(tmp_path, None)
    scene.step(4, "start")
    assert scene.wait(STARTUP_LIMIT_S) == []
    scene.step(4, "forward pass")
    scene.step(5)
    assert scene.wait(50.0) == []
    scene.step(6)
    assert scene.wait(490.0) == [], "a step took 50 s, so ten times as long is none"
    scene.step(7, "checkpoint")
    assert scene.wait(2000.0) == []
    scene.step(8)
    assert len(scene.wait(2 * 4900.0 + 10)) == 2


def test_a_launcher_that_was_stopped_itself_saw_nothing(scene: Scene) -> None:
    scene.markers[0]("backward pass", 1)
    scene.watch.poll()
    scene.now += 3600.0
    assert scene.watch.poll() == []


def test_a_limit_is_a_number_of_seconds() -> None:
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputFault, match="--stall-limit"):
            RunOptions(stall_limit_s=bad)
