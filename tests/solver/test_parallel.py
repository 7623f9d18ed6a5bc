"""Threads of a search: as many as cores, and all of them end when one fails or the caller is interrupted."""

import threading
from threading import Barrier, Event

import numpy as np
import pytest

from torchsplit_core.solver import parallel
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.parallel import run_in_threads, thread_count
from torchsplit_core.solver.row_program import RowProgram


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: set(range(4)))


def test_there_is_a_thread_for_each_core_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    assert thread_count() == 4
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: set(range(64)))
    assert thread_count() == parallel.MAX_THREADS


def test_the_work_is_done_in_all_threads_at_once():
    together = Barrier(4)
    names = set()

    def work(stopped: Event) -> None:
        together.wait(60)
        names.add(threading.current_thread().name)

    run_in_threads(work)
    assert len(names) == 4


def test_all_end_when_one_fails():
    first = threading.Lock()
    ended = []

    def work(stopped: Event) -> None:
        if first.acquire(blocking=False):
            raise ValueError("broken")
        ended.append(stopped.wait(60))

    with pytest.raises(ValueError, match="broken"):
        run_in_threads(work)
    assert ended == [True] * 3


def test_programs_have_the_same_solutions_side_by_side():
    def bound(seed: int) -> float:
        rng = np.random.default_rng(seed)
        program = RowProgram()
        program.add_columns(list(-rng.uniform(1, 2, 12)), [1.0] * 12)
        for _ in range(4):
            program.add_row(-INF, 3.0, list(range(12)), list(rng.uniform(0, 1, 12)))
        return program.solve(60.0).bound

    alone = {seed: bound(seed) for seed in range(20)}
    together: dict[int, float] = {}
    seeds, lock = iter(alone), threading.Lock()

    def work(stopped: Event) -> None:
        while True:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                return
            together[seed] = bound(seed)

    run_in_threads(work)
    assert together == pytest.approx(alone, rel=1e-6)
