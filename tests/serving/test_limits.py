"""Deadlines, full queues, clients that go away, many at once, shares of a slice."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.serving.doubling import doubled, x
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import running
from torchsplit_core.serving.settings import ServeSettings

pytestmark = pytest.mark.torch


def test_deadlines_and_full_queues(doubling):
    begin = time.monotonic()
    status, told = doubling.infer("double", x(300), parameters={"timeout": 200_000})
    assert status == 504 and "0.2 s" in told["error"] and time.monotonic() - begin < 0.9
    with ThreadPoolExecutor(100) as pool:
        blocked = pool.submit(doubling.infer, "double", x(300))
        time.sleep(0.2)
        answers = list(pool.map(lambda row: doubling.infer("double", x(float(row))), range(99)))
        assert doubled(blocked.result()) == [600]
    statuses = [status for status, _ in answers]
    # The first may still be at work, and the second waits behind it.
    assert set(statuses) == {200, 429} and statuses.count(200) >= 49
    assert all(doubled(answer) == [2.0 * row] for row, answer in enumerate(answers) if answer[0] == 200)
    assert doubling.infer("double", x(*range(51)))[0] == 429


def test_clients_that_go_away_or_never_end(doubling):
    held = []
    for sent in (b"", b"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"):
        stream = socket.create_connection((doubling.host, doubling.port))
        stream.sendall(sent)
        held.append(stream)
    body = json.dumps({"inputs": x(300)}).encode()
    for _ in range(3):
        with socket.create_connection((doubling.host, doubling.port)) as gone:
            head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            gone.sendall(head.encode() + body)
            time.sleep(0.05)
    begin = time.monotonic()
    assert doubled(doubling.infer("double", x(1))) == [2]
    assert time.monotonic() - begin < 2.5, "what nobody waits for is not computed, but for the batch at work"
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
        until = time.monotonic() + 4.0

        def ask(model):
            while time.monotonic() < until:
                assert server.infer(model, x(1))[0] == 200

        list(pool.map(ask, ["big", "small"] * 4))
        tallies = server.ask("GET", "/torchsplit/tallies")[1]
    busy = {name.rpartition("/")[2]: tally["busy_s"] for name, tally in tallies.items()}
    assert busy["big.whole"] / (busy["big.whole"] + busy["small.whole"]) > 0.6
