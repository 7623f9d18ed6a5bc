"""Deadlines, full queues, clients that go away, many at once, shares of a slice."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.serving.doubling import doubled, until, x
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import running
from torchsplit_core.serving.settings import ServeSettings

pytestmark = pytest.mark.torch


def test_a_request_that_waits_too_long_is_told_so(doubling, gate):
    status, told = doubling.infer("double", x(300), parameters={"timeout": 200_000})
    assert status == 504 and "0.2 s" in told["error"]
    assert doubling.state()[0] == "busy", "it was told while the model was still at work"


def test_full_queues(doubling, gate):
    with ThreadPoolExecutor(100) as pool:
        blocked = pool.submit(doubling.infer, "double", x(300))
        until(lambda: doubling.state() == ("busy", 0))
        asked = [pool.submit(doubling.infer, "double", x(float(row))) for row in range(99)]
        until(lambda: sum(reply.done() for reply in asked) == 49)
        assert all(reply.result()[0] == 429 for reply in asked if reply.done())
        assert doubling.state() == ("busy", 50)
        gate.touch()
        assert doubled(blocked.result()) == [600]
        answers = [reply.result() for reply in asked]
    assert sorted(status for status, _ in answers) == [200] * 50 + [429] * 49
    assert all(doubled(answer) == [2.0 * row] for row, answer in enumerate(answers) if answer[0] == 200)
    assert doubling.infer("double", x(*range(51)))[0] == 429


def test_clients_that_go_away_or_never_end(doubling, gate):
    held = []
    for sent in (b"", b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"):
        stream = socket.create_connection((doubling.host, doubling.port))
        stream.sendall(sent)
        held.append(stream)
    body = json.dumps({"inputs": x(300)}).encode()
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    for waiting in range(3):
        with socket.create_connection((doubling.host, doubling.port)) as gone:
            gone.sendall(head.encode() + body)
            until(lambda: doubling.state() == ("busy", min(waiting, 1)))  # noqa: B023
        until(lambda: doubling.state() == ("busy", 0))
    gate.touch()
    assert doubled(doubling.infer("double", x(1))) == [2]
    (tally,) = doubling.ask("GET", "/torchsplit/tallies")[1].values()
    assert tally["rows"] == 2, "what nobody waits for is not computed, but for the batch at work"
    huge = {"Content-Length": str(10**12)}
    assert doubling.ask("POST", "/v2/models/double/infer", b"", huge)[0] == 413
    for stream in held:
        stream.close()


def test_many_at_once_are_all_answered_once(doubling):
    """As many as there are descriptors for here, of 10,000 (benchmarks has all of them)."""
    counts = {}
    lock = threading.Lock()

    def burst(number):
        for row in range(10):
            status, told = doubling.infer("double", x(float(row)))
            with lock:
                counts[status] = counts.get(status, 0) + 1
            assert status == 429 or doubled((status, told)) == [2.0 * row]

    with ThreadPoolExecutor(100) as pool:
        list(pool.map(burst, range(100)))
    assert sum(counts.values()) == 1000 and set(counts) <= {200, 429}
    text = doubling.ask("GET", "/metrics")[1]
    for status, count in counts.items():
        assert f'torchsplit_requests_total{{model="double",status="{status}"}} {float(count)}' in text


def test_shares_are_kept_by_turns(file):
    plan = cpu_plan(
        [Placed("big", share=0.75, batch_size=1), Placed("small", share=0.25, batch_size=1)],
        {"big": f"{file}:Client", "small": f"{file}:Client"},
    )
    with running(plan, ServeSettings(trust=True)) as server, ThreadPoolExecutor(8) as pool:
        asked, stop = dict.fromkeys(["big", "small"], 0), threading.Event()

        def ask(model):
            while not stop.is_set():
                assert server.infer(model, x(400))[0] == 200
                asked[model] += 1

        def big_share():
            tallies = server.ask("GET", "/torchsplit/tallies")[1]
            busy = {name.rpartition("/")[2]: tally["busy_s"] for name, tally in tallies.items()}
            return busy["big.whole"] / (busy["big.whole"] + busy["small.whole"])

        askers = [pool.submit(ask, model) for model in ["big", "small"] * 4]
        try:
            # A pause of the machine falls to whoever has the slice: later turns make up for it.
            until(lambda: min(asked.values()) >= 50 and big_share() > 0.6)
        finally:
            stop.set()
        for asker in askers:
            asker.result()
