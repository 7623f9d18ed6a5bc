"""Servers with workers of their own: the public client, limits, faults of models, workers that die."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support.paths import ROOT
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import Running, running
from torchsplit_core.files import read_file, write_file
from torchsplit_core.model_source import load_client
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.values import InputFault

MODELS = '''
import os, time, torch
from torch import nn

class Model(nn.Module):
    """Doubles; what it does beside that depends on the first number of a row."""
    def forward(self, x):
        first = float(x[:, 0].max())
        if first == 100:
            raise IndexError("a token out of range")
        if first == 200:
            os._exit(9)
        if first == 300:
            time.sleep(1.0)
        return 2 * x

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Model()
    def get_example_inputs(self, batch_size):
        return (torch.ones(batch_size, 2),)

class Broken(Client):
    def get_model(self):
        raise ValueError("no weights here")

class Dies(Client):
    def get_model(self):
        os._exit(7)

class Flat(Client):
    """Gives no batch back."""
    def get_model(self):
        model = nn.Linear(2, 2)
        model.forward = lambda x: x.sum()
        return model
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def doubling(file: Path) -> Iterator[Running]:
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"}, max_wait_ms={"double": 20.0})
    with running(plan, ServeSettings(trust=True, queue_limit=50, deadline_s=20)) as server:
        yield server


def x(*rows: float) -> list[dict[str, Any]]:
    data = [[row, 1.0] for row in rows]
    return [{"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": data}]


def doubled(answer: tuple[int, Any]) -> list[float]:
    status, told = answer
    assert status == 200, told
    return list(told["outputs"][0]["data"][::2])


def children_of(pid: int) -> list[int]:
    """All processes below one, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found, left = [], [pid]
    while left:
        parent = left.pop()
        below = [one for one, above in parents.items() if above == parent]
        found += below
        left += below
    return found


def test_the_public_client_gets_the_models_own_answers() -> None:
    plan = cpu_plan(
        [Placed("bert", batch_size=4), Placed("clip", start=1, batch_size=2)],
        {"bert": "sample:bert", "clip": "sample:clip"},
    )
    with running(plan) as server, triton.InferenceServerClient(server.address, concurrency=4) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("bert", "1")
        assert client.get_server_metadata()["name"] == "torchsplit"
        assert client.get_model_config("bert")["input"][0] == {
            "name": "ids", "data_type": "TYPE_INT64", "dims": [16],
        }  # fmt: skip
        for name in ("bert", "clip"):
            sample = load_client(f"sample:{name}")
            model, told = sample.get_model(), client.get_model_metadata(name)
            assert all(port["shape"][0] == -1 for port in told["inputs"] + told["outputs"])
            for rows in (1, 4, 11):
                given = sample.get_example_inputs(rows)
                with torch.inference_mode():
                    wanted = model(*given)
                leaves = list(wanted) if isinstance(wanted, tuple) else [wanted]
                for binary in (True, False):
                    inputs = []
                    for port, tensor in zip(told["inputs"], given, strict=True):
                        one = triton.InferInput(port["name"], list(tensor.shape), port["datatype"])
                        inputs.append(one.set_data_from_numpy(tensor.numpy(), binary_data=binary))
                    outputs = [
                        triton.InferRequestedOutput(o["name"], binary_data=binary) for o in told["outputs"]
                    ]
                    for found in (
                        client.infer(name, inputs, request_id="7", outputs=outputs, timeout=20_000_000),
                        client.infer(name, inputs, request_compression_algorithm="gzip"),
                        client.async_infer(
                            name, inputs, request_compression_algorithm="deflate"
                        ).get_result(),
                    ):
                        for port, leaf in zip(told["outputs"], leaves, strict=True):
                            np.testing.assert_allclose(found.as_numpy(port["name"]), leaf.numpy(), atol=1e-5)
        statistics = client.get_inference_statistics("bert")["model_stats"][0]
        assert statistics["inference_count"] == (1 + 4 + 11) * 6 > statistics["execution_count"]
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.infer("nobody", inputs)


def test_a_cut_model_is_served_by_a_row_of_workers() -> None:
    _, cut = read_file(ROOT / "examples" / "partition.json", expected="torchsplit.partition")
    nodes = {str(number): stage for number, stage in enumerate(cut.candidates[0].stages)}
    placed = [
        Placed("diamond", start=int(stage), stage=stage, processes=2 if stage == "1" else 1)
        for stage in nodes
    ]
    plan = cpu_plan(placed, {"diamond": "sample:diamond"}, cores=4, nodes={"diamond": nodes})
    sample = load_client("sample:diamond")
    with running(plan) as server, triton.InferenceServerClient(server.address, concurrency=8) as client:
        told = client.get_model_metadata("diamond")
        asked, found = [], []
        for rows in (1, 2, 3, 9) * 5:
            given = sample.get_example_inputs(rows)[0]
            port = told["inputs"][0]
            one = triton.InferInput(port["name"], list(given.shape), port["datatype"])
            asked.append(client.async_infer("diamond", [one.set_data_from_numpy(given.numpy())]))
            with torch.inference_mode():
                found.append(sample.get_model()(given).numpy())
        for request, wanted in zip(asked, found, strict=True):
            np.testing.assert_allclose(request.get_result().as_numpy("output_0"), wanted, atol=1e-6)
        workers = server.ask("GET", "/torchsplit/state")[1]["workers"]
        assert len(workers) == 3
        os.kill(children_of(workers["host0/1c@1#0"]["pid"])[0], signal.SIGKILL)
        given = sample.get_example_inputs(2)[0]
        one = triton.InferInput(told["inputs"][0]["name"], list(given.shape), "FP32").set_data_from_numpy(
            given.numpy()
        )
        for _ in range(4):
            assert client.infer("diamond", [one]).as_numpy("output_0").shape[0] == 2


def test_statuses_metadata_and_metrics(doubling: Running) -> None:
    assert doubled(doubling.infer("double", x(1, 2, 3))) == [2, 4, 6]
    assert doubling.ask("GET", "/v2/models/double")[1]["outputs"] == [
        {"name": "output_0", "datatype": "FP32", "shape": [-1, 2]}
    ]
    for path, status in (
        ("/v2/models/nobody", 404), ("/v2/models/nobody/ready", 404), ("/v2/models/double/versions/2", 404),
        ("/v2/models/double/versions/1/ready", 200), ("/nothing", 404), ("/v2/health/live", 200), ("/v2", 200),
        ("/v2/models/double/infer", 405),
    ):  # fmt: skip
        assert doubling.ask("GET", path)[0] == status, path
    wrong = dict(x(1)[0], name="y"), dict(x(1)[0], shape=[1, 3]), dict(x(1)[0], datatype="INT64")
    for one in wrong:
        status, told = doubling.infer("double", [one])
        assert status == 400 and told["error"]
    assert doubling.infer("double", x(1), outputs=[{"name": "z"}])[0] == 400
    assert doubling.infer("nobody", x(1))[0] == 404
    assert doubling.ask("POST", "/v2/models/double/infer", b"\x00")[0] == 400
    unpackable = {"Content-Encoding": "gzip"}
    assert doubling.ask("POST", "/v2/models/double/infer", b"nothing packed", unpackable)[0] == 400
    assert doubling.ask("POST", "/v2/models/double/infer", b"{}", {"Content-Encoding": "br"})[0] == 415
    text = doubling.ask("GET", "/metrics")[1]
    assert 'torchsplit_requests_total{model="double",status="200"} 1.0' in text
    assert 'torchsplit_batch_rows_sum{model="double",slice="host0/1c@0",stage="whole"} 3.0' in text
    assert 'torchsplit_queue_rows{model="double",stage="whole"} 0.0' in text


def test_a_request_that_fails_is_alone_with_it(doubling: Running) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda row: doubling.infer("double", x(row)), (1, 100, 3, 4)))
    assert [status for status, _ in answers] == [200, 500, 200, 200]
    assert "a token out of range" in answers[1][1]["error"]
    assert [doubled(answers[i]) for i in (0, 2, 3)] == [[2], [6], [8]]


def test_a_request_that_kills_its_worker_takes_no_other_with_it(doubling: Running) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda row: doubling.infer("double", x(row)), (1, 200, 3, 4)))
    assert [status for status, _ in answers] == [200, 503, 200, 200]
    assert "two workers" in answers[1][1]["error"]
    assert doubled(doubling.infer("double", x(5))) == [10]


def test_a_killed_worker_is_started_again_and_its_batch_retried(doubling: Running) -> None:
    with ThreadPoolExecutor(8) as pool:
        slow = pool.submit(doubling.infer, "double", x(300))
        time.sleep(0.3)
        (supervisor,) = (
            seat["pid"] for seat in doubling.ask("GET", "/torchsplit/state")[1]["workers"].values()
        )
        more = [pool.submit(doubling.infer, "double", x(row)) for row in (1, 2)]
        for pid in children_of(supervisor) or [supervisor]:
            os.kill(pid, signal.SIGKILL)
        assert doubled(slow.result()) == [600]
        assert [doubled(one.result()) for one in more] == [[2], [4]]
    assert (
        'torchsplit_worker_deaths_total{model="double",slice="host0/1c@0",stage="whole"} 1.0'
        in (doubling.ask("GET", "/metrics")[1])
    )


def test_workers_that_die_idle_are_replaced_before_a_request_meets_them(file: Path) -> None:
    plan = cpu_plan([Placed("double", processes=2)], {"double": f"{file}:Client"})
    with running(plan, ServeSettings(trust=True)) as server:
        workers = server.ask("GET", "/torchsplit/state")[1]["workers"]
        for told in workers.values():
            for pid in children_of(told["pid"]):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while "worker_deaths_total{" not in (text := server.ask("GET", "/metrics")[1]) or "} 2.0" not in text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert doubled(server.infer("double", x(4))) == [8]
        while any(
            one["state"] != "free" for one in server.ask("GET", "/torchsplit/state")[1]["workers"].values()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert server.ask("GET", "/v2/health/ready")[0] == 200


def test_a_model_that_stands_still_is_ended(file: Path) -> None:
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"})
    with running(plan, ServeSettings(trust=True, deadline_s=0.3)) as server:
        assert server.infer("double", x(300))[0] == 504
        deadline = time.monotonic() + 60
        while "worker_deaths_total{" not in server.ask("GET", "/metrics")[1]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        while server.infer("double", x(5))[0] != 200:
            assert time.monotonic() < deadline


def test_what_is_not_answered_in_time_at_the_end_is_refused(file: Path) -> None:
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"})
    with running(plan, ServeSettings(trust=True, drain_s=0.1)) as server, ThreadPoolExecutor(1) as pool:
        taken = pool.submit(server.infer, "double", x(300))
        time.sleep(0.3)
        server.stop()
        status, told = taken.result()
        assert status == 503 and "stops" in told["error"]


def test_deadlines_and_full_queues(doubling: Running) -> None:
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


def test_draining_answers_what_was_taken_and_refuses_the_rest(doubling: Running) -> None:
    with ThreadPoolExecutor(2) as pool:
        taken = pool.submit(doubling.infer, "double", x(300))
        time.sleep(0.2)
        doubling.stop()
        time.sleep(0.1)
        assert doubling.ask("GET", "/v2/health/ready")[0] == 503
        assert doubling.infer("double", x(1))[0] == 503
        assert doubled(taken.result()) == [600]


def test_clients_that_go_away_or_never_end(doubling: Running) -> None:
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


@pytest.mark.parametrize(("name", "words"), [
    ("Broken", "no weights here"), ("Dies", "ended while it loaded"), ("Flat", "has the batch in its first dimension"),
])  # fmt: skip
def test_models_that_cannot_be_served_are_named(file: Path, name: str, words: str) -> None:
    plan = cpu_plan([Placed("odd")], {"odd": f"{file}:{name}"})
    with pytest.raises(InputFault, match="odd") as told, running(plan, ServeSettings(trust=True)):
        pass
    assert words in str(told.value)
    with pytest.raises(InputFault, match="--trust"), running(plan):
        pass


def test_shares_are_kept_by_turns(file: Path) -> None:
    plan = cpu_plan(
        [Placed("big", share=0.75, batch_size=1), Placed("small", share=0.25, batch_size=1)],
        {"big": f"{file}:Client", "small": f"{file}:Client"},
    )
    with running(plan, ServeSettings(trust=True)) as server, ThreadPoolExecutor(8) as pool:
        until = time.monotonic() + 4.0

        def ask(model: str) -> None:
            while time.monotonic() < until:
                assert server.infer(model, x(1))[0] == 200

        list(pool.map(ask, ["big", "small"] * 4))
        tallies = server.ask("GET", "/torchsplit/tallies")[1]
    busy = {name.rpartition("/")[2]: tally["busy_s"] for name, tally in tallies.items()}
    assert busy["big.whole"] / (busy["big.whole"] + busy["small.whole"]) > 0.6


def test_many_at_once_are_all_answered_once(doubling: Running) -> None:
    """As many as there are descriptors for here, of 10,000 (benchmarks has all of them)."""
    counts: dict[int, int] = {}
    lock = threading.Lock()

    def burst(number: int) -> None:
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


def test_no_process_is_left_behind(file: Path, tmp_path: Path) -> None:
    """kill -9 of the front: the workers end by themselves. Then SIGTERM, and a port that is taken."""
    plan, request = cpu_plan([Placed("double")], {"double": f"{file}:Client"}, cores=1)
    write_file(plan, tmp_path / "plan.json")
    write_file(request, tmp_path / "request.json")
    command = [
        sys.executable, "-m", "torchsplit_core", "serve", str(tmp_path / "plan.json"), "--request",
        str(tmp_path / "request.json"), "--trust", "--ready-file", str(tmp_path / "ready"),
    ]  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = subprocess.run(
            [*command, "--port", port], capture_output=True, text=True, timeout=120, check=False
        )
    assert refused.returncode == 2 and "--port" in refused.stderr and "Traceback" not in refused.stderr
    for number in (signal.SIGKILL, signal.SIGTERM):
        (tmp_path / "ready").unlink(missing_ok=True)
        process = subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while not (tmp_path / "ready").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        below = children_of(process.pid)
        assert below
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        assert process.returncode == (0 if number == signal.SIGTERM else -number), told
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}/exe").exists() and _alive(pid) for pid in below):
            assert time.monotonic() < deadline, "a worker outlived its front"
            time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
