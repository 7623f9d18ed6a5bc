"""Models that raise, die or stand still: only the request at fault fails; a worker that died is replaced."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.serving.doubling import children_of, doubled, kill_below, until, x
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import running
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.serving.worker_process import LONGEST_OUTPUT
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.torch


def test_a_request_that_fails_is_alone_with_it(doubling):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda row: doubling.infer("double", x(row)), (1, 100, 3, 4)))
    assert [status for status, _ in answers] == [200, 500, 200, 200]
    assert "a token out of range" in answers[1][1]["error"]
    assert [doubled(answers[i]) for i in (0, 2, 3)] == [[2], [6], [8]]


def test_a_request_that_kills_its_worker_takes_no_other_with_it(doubling):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda row: doubling.infer("double", x(row)), (1, 200, 3, 4)))
    assert [status for status, _ in answers] == [200, 503, 200, 200]
    assert "two workers" in answers[1][1]["error"]
    assert doubled(doubling.infer("double", x(5))) == [10]


def test_a_killed_worker_is_started_again_and_its_batch_retried(doubling, gate):
    with ThreadPoolExecutor(8) as pool:
        slow = pool.submit(doubling.infer, "double", x(300))
        until(lambda: doubling.state() == ("busy", 0))
        (supervisor,) = (
            seat["pid"] for seat in doubling.ask("GET", "/torchsplit/state")[1]["workers"].values()
        )
        more = [pool.submit(doubling.infer, "double", x(row)) for row in (1, 2)]
        kill_below(supervisor)
        gate.touch()
        assert doubled(slow.result()) == [600]
        assert [doubled(one.result()) for one in more] == [[2], [4]]
    assert (
        'torchsplit_worker_deaths_total{model="double",slice="host0/1c@0",stage="whole"} 1.0'
        in (doubling.ask("GET", "/metrics")[1])
    )
    assert doubling.ask("GET", "/torchsplit/tallies")[1]["host0/1c@0"]["deaths"] == 1


def test_workers_that_die_idle_are_replaced_before_a_request_meets_them(file):
    plan = cpu_plan([Placed("double", processes=2)], {"double": f"{file}:Client"})
    with running(plan, ServeSettings(trust=True)) as server:
        workers = server.ask("GET", "/torchsplit/state")[1]["workers"]
        for told in workers.values():
            kill_below(told["pid"])
        until(lambda: "} 2.0" in server.ask("GET", "/metrics")[1].partition("worker_deaths_total{")[2])
        assert server.ask("GET", "/torchsplit/examples/double")[0] == 200
        assert doubled(server.infer("double", x(4))) == [8]
        until(lambda: {"free"} == {
            one["state"] for one in server.ask("GET", "/torchsplit/state")[1]["workers"].values()
        })  # fmt: skip
        assert server.ask("GET", "/v2/health/ready")[0] == 200


def test_of_what_a_model_prints_the_end_is_kept_in_memory(file):
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Chatty"})
    with running(plan, ServeSettings(trust=True)) as server:
        (told,) = server.ask("GET", "/torchsplit/state")[1]["workers"].values()
        for row in range(5):
            assert doubled(server.infer("double", x(row))) == [2 * row]
        printed = Path(f"/proc/{children_of(told['pid'])[-1]}/fd/1")
        assert "memfd" in str(printed.readlink())
        until(lambda: printed.stat().st_size <= LONGEST_OUTPUT)
        status, answer = server.infer("double", x(200))
        assert status == 503 and "at the end" in answer["error"]


def test_a_model_that_stands_still_is_ended(file):
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"})
    with running(plan, ServeSettings(trust=True, deadline_s=0.3)) as server:
        assert server.infer("double", x(300))[0] == 504
        until(lambda: "worker_deaths_total{" in server.ask("GET", "/metrics")[1])
        until(lambda: server.infer("double", x(5))[0] == 200)


@pytest.mark.parametrize(("name", "words"), [
    ("Broken", "no weights here"), ("Dies", "ended its process while it loaded, with status 7"),
    ("Flat", "without the batch in front"),
])  # fmt: skip
def test_models_that_cannot_be_served_are_named(file, name, words):
    plan = cpu_plan([Placed("odd")], {"odd": f"{file}:{name}"})
    with pytest.raises(InputFault, match="odd") as caught, running(plan, ServeSettings(trust=True)):
        pass
    assert words in str(caught.value)
    with pytest.raises(InputFault, match="--trust"), running(plan):
        pass
