"""A forked worker: what it answers, what it says of its end, and that no killed parent leaves one behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.isolation.processes import began, gone, mark, running
from torchsplit_core.isolation.fork_worker import ForkedWorker, WorkerEnded
from torchsplit_core.values import InternalFault

WAIT_S = 120.0
WORKER = """
from torchsplit_core.isolation.fork_worker import ForkedWorker
worker = ForkedWorker(time.sleep)
worker.submit(600)
time.sleep(600)
"""
EXPLANATION = """
from torchsplit_core.planning.explanation import planner_process
planner_process._plan_request = lambda *_: time.sleep(600)
with planner_process.PlannerProcesses(time.perf_counter() + 600) as planners:
    planners.submit(None, None, 300, relaxes=True)
    list(planners.answers(block=True))
"""
SWEEP = """
from torchsplit_core.planning.sweep import workers
workers._plan_request = lambda *_: time.sleep(600)
workers.plan_all([None], 300, print)
"""


def test_a_worker_answers_one_question_after_the_other_in_its_own_process():
    worker = ForkedWorker(lambda *question: (os.getpid(), question))
    try:
        told = []
        for question in ((), ("a", 1), ([2.0],)):
            worker.submit(*question)
            assert worker.poll(WAIT_S)
            told.append(worker.result())
        assert [question for _, question in told] == [(), ("a", 1), ([2.0],)]
        assert len({pid for pid, _ in told}) == 1 and told[0][0] != os.getpid()
    finally:
        worker.kill()


def test_what_it_raises_is_a_fault_of_our_own_and_it_goes_on():
    worker = ForkedWorker(lambda divisor: 1 / divisor)
    try:
        worker.submit(0)
        with pytest.raises(InternalFault, match="ZeroDivisionError: division by zero"):
            worker.result()
        worker.submit(2)
        assert worker.result() == 0.5
    finally:
        worker.kill()


def test_one_that_died_says_so_then_and_at_the_next_question():
    worker = ForkedWorker(os._exit)
    try:
        for _ in range(2):
            worker.submit(1)
            assert worker.poll(WAIT_S)
            with pytest.raises(WorkerEnded):
                worker.result()
    finally:
        worker.kill()


def test_it_is_ended_whatever_it_does():
    worker = ForkedWorker(lambda: (os.getpid(), time.sleep(600)))
    worker.submit()
    assert not worker.poll()
    pid = worker._process.pid
    worker.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize("program", [WORKER, EXPLANATION, SWEEP], ids=["worker", "explanation", "sweep"])
def test_a_killed_parent_leaves_no_worker_behind(program):
    name = mark()
    parent = subprocess.Popen([sys.executable, "-c", f"import time\n{program}", name])
    try:
        assert began(name, 2), "a forked worker has its parent's command line"
        parent.kill()
        parent.wait()
        assert gone(name)
    finally:
        parent.kill()
        parent.wait()
        for pid in running(name):
            os.kill(pid, signal.SIGKILL)
