"""The router in front of stand-in servers: parts in a row, balance, refusals, servers that are not there."""

import gzip
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import httpx2
import numpy as np
import pytest

from tests.support.seeds import repeated
from tests.support.serving.routers import routed
from torchsplit_core.files import write_file
from torchsplit_core.serving.protocol.client import RawTensor, decode_outputs, encode_request
from torchsplit_core.serving.protocol.http_body import content_headers, max_body_bytes, parse_json_length
from torchsplit_core.serving.protocol.tensors import LENGTH_HEADER, TensorPort, encode_response, parse_request
from torchsplit_core.values.serving.routes import (
    RoutedModel,
    RoutedOutput,
    RoutedTensor,
    Routes,
    RouteServer,
    RouteStep,
)


class StandIn:
    """A server of one part: multiplies its one input `x`, the first `rows` of it.

    `status` other than 200 refuses with it.
    """

    def __init__(self, factor: float) -> None:
        self.factor, self.status, self.calls, self.ready = factor, 200, 0, True
        self.rows: int | None = None
        self.hold = threading.Event()
        self.hold.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def send(self, status: int, body: bytes, length: int | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                for header in content_headers(length).items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                if self.path.startswith("/v2/health"):
                    return self.send(200 if outer.ready else 503, b"")
                return self.send(200, json.dumps({"inputs": [{"name": "x"}]}).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.calls += 1
                outer.hold.wait(30)
                if outer.status != 200:
                    return self.send(outer.status, b'{"error":"full"}')
                length = parse_json_length(self.headers.get(LENGTH_HEADER))
                asked = parse_request(body, length, (TensorPort("x", "FP32", (-1,)),), ["output_0"])
                asked = replace(asked, rows=outer.rows or asked.rows)
                data = (np.frombuffer(asked.inputs[0], "<f4") * outer.factor).astype("<f4")
                data = data.reshape(asked.shapes[0])[: asked.rows]
                port = TensorPort("output_0", "FP32", asked.shapes[0][1:])
                return self.send(200, *encode_response(asked, "part", (port,), [data.tobytes()]))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextmanager
def stand_ins(*factors: float) -> Iterator[list[StandIn]]:
    found = [StandIn(factor) for factor in factors]
    try:
        yield found
    finally:
        for one in found:
            one.hold.set()
            one.server.shutdown()
            one.server.server_close()


def routes_of(*steps: list[str | tuple[str, float]]) -> Routes:
    """The model "a/b c", through these servers part after part."""
    made = tuple(
        RouteStep(
            f"part {number}",
            (f"v{number}",),
            (f"v{number + 1}",),
            tuple(RouteServer(*((server,) if isinstance(server, str) else server)) for server in servers),
        )
        for number, servers in enumerate(steps)
    )
    model = RoutedModel(
        "a/b c", (RoutedTensor("v0", "FP32", (-1, 2)),),
        (RoutedOutput("output_0", "FP32", (-1, 2), f"v{len(steps)}"),), made,
    )  # fmt: skip
    return Routes((model,))


OPEN = ExitStack()
"""Routers of a test: each in one event loop for all that it is asked, as when it runs."""


@pytest.fixture(autouse=True)
def routers_end() -> Iterator[None]:
    with OPEN:
        yield


def client(*steps: list[str | tuple[str, float]], timeout_s: float = 20.0) -> httpx2.Client:
    """A router of that model."""
    return OPEN.enter_context(routed(routes_of(*steps), timeout_s))


PATH = "/v2/models/a%2Fb%20c"
ASKED = {"inputs": [{"name": "v0", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, 4]]}]}


def test_parts_in_a_row_answer_in_json_and_in_binary():
    with stand_ins(2, 3) as (one, two):
        asked = client([one.url], [two.url])
        answer = asked.post(f"{PATH}/infer", json={**ASKED, "id": "7"})
        assert answer.status_code == 200
        assert answer.json() == {
            "model_name": "a/b c",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "output_0", "datatype": "FP32", "shape": [2, 2], "data": [6, 12, 18, 24]}],
        }
        tensor = RawTensor("v0", "FP32", (1, 2), np.array([1, 5], "<f4").tobytes())
        body, length = encode_request([tensor])
        answer = asked.post(f"{PATH}/infer", content=body, headers=content_headers(length))
        (back,) = decode_outputs(answer.content, answer.headers[LENGTH_HEADER])
        assert np.frombuffer(back.data, "<f4").tolist() == [6, 30]
        assert asked.get(PATH).json()["outputs"] == [
            {"name": "output_0", "datatype": "FP32", "shape": [-1, 2]}
        ]


def test_a_whole_model_goes_on_as_it_came():
    with stand_ins(2) as (one,):
        body = {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [4]}],
            "parameters": {"binary_data_output": True},
        }
        answer = client([one.url]).post(f"{PATH}/infer", json=body)
        (back,) = decode_outputs(answer.content, answer.headers[LENGTH_HEADER])
        assert np.frombuffer(back.data, "<f4").tolist() == [8]


@repeated("refusal", ["gone", 429, 503])
def test_the_next_server_is_asked_where_one_will_not(refusal):
    with stand_ins(2, 2) as (one, two):
        asked = client([(one.url, 100.0), (two.url, 1.0)])
        if refusal == "gone":
            one.server.shutdown()
            one.server.server_close()
        else:
            one.status = refusal
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [4]}]}
        assert asked.post(f"{PATH}/infer", json=body).status_code == 200
        assert two.calls == 1
        two.status = 429
        assert asked.post(f"{PATH}/infer", json=body).status_code == 429


def test_requests_are_shared_out_by_weight_and_by_who_is_busy():
    with stand_ins(2, 2) as (one, two):
        asked = client([(one.url, 2.0), (two.url, 1.0)])
        one.hold.clear()
        two.hold.clear()
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [4]}]}
        threads = []
        for number in range(6):
            threads.append(
                threading.Thread(target=asked.post, args=(f"{PATH}/infer",), kwargs={"json": body})
            )
            threads[-1].start()
            while one.calls + two.calls < number + 1:
                threading.Event().wait(0.01)
        assert (one.calls, two.calls) == (4, 2)
        one.hold.set()
        two.hold.set()
        for thread in threads:
            thread.join(30)


def test_refusals_of_a_part_and_parts_that_are_away_reach_the_client():
    with stand_ins(2, 3) as (one, two):
        asked = client([one.url], [two.url])
        two.status = 400
        assert asked.post(f"{PATH}/infer", json=ASKED).status_code == 400
        two.status = 200
        two.hold.clear()
        hurried = client([one.url], [two.url], timeout_s=0.5)
        assert hurried.post(f"{PATH}/infer", json=ASKED).status_code == 504
        two.hold.set()
        assert asked.get("/v2/health/ready").status_code == 200
        two.ready = False
        assert asked.get("/v2/health/ready").status_code == 503
        assert asked.get(f"{PATH}/ready").status_code == 503
        assert asked.get("/v2/health/live").status_code == 200
    gone = client(["http://127.0.0.1:9"], ["http://127.0.0.1:9"])
    assert gone.post(f"{PATH}/infer", json=ASKED).status_code == 503


BAD = [
    ({}, "list of inputs"),
    ({"inputs": []}, "v0: is missing"),
    ({"inputs": [{"name": "v1", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}, "Known inputs: v0"),
    ({"inputs": [{"name": "v0", "datatype": "FP64", "shape": [1, 2], "data": [1, 2]}]}, "FP32"),
    ({"inputs": [{"name": "v0", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}, "[-1, 2]"),
    ({"inputs": [{"name": "v0", "datatype": "FP32", "shape": [0, 2], "data": []}]}, "rows"),
    ({"inputs": [{"name": "v0", "datatype": "FP32", "shape": [1, 2], "data": [1]}]}, "1 numbers"),
    ({"inputs": [{"name": "v0", "datatype": "FP32", "shape": [1, 2], "data": ["x", 1]}]}, "it holds text"),
    ({"inputs": [{"name": "v0", "datatype": "FP32", "shape": [-1, 2], "data": [1, 2]}]}, "has -1 rows"),
    ({"inputs": [{"name": "v0", "datatype": "TEXT", "shape": [1], "data": ["x"]}]}, "FP32"),
    ({**ASKED, "outputs": [{"name": "y"}]}, "unknown output"),
    ({**ASKED, "outputs": ["y"]}, "an object with a name"),
]


def test_what_is_no_request_is_refused_before_any_part_works():
    with stand_ins(2, 3) as (one, two):
        asked = client([one.url], [two.url])
        for body, words in BAD:
            answer = asked.post(f"{PATH}/infer", json=body)
            assert answer.status_code == 400, body
            assert words in answer.json()["error"]
            assert one.calls == two.calls == 0


def test_no_json_wrong_lengths_and_unknown_models():
    with stand_ins(2, 3) as (one, two):
        asked = client([one.url], [two.url])
        for content, length in ((b"{", None), (b"[]", "9"), (b"{}", "x"), (b"[" * 10_000, None)):
            headers = {} if length is None else {LENGTH_HEADER: length}
            assert asked.post(f"{PATH}/infer", content=content, headers=headers).status_code == 400
        assert asked.post("/v2/models/b/infer", json=ASKED).status_code == 404
        assert asked.get("/v2/models/b").status_code == 404
        metrics = asked.get("/metrics").text
        assert 'torchsplit_route_requests_total{code="400",model="a/b c"} 4.0' in metrics


def test_packed_requests_and_a_clients_own_time():
    with stand_ins(2, 3) as (one, two):
        asked = client([one.url], [two.url])
        packed = gzip.compress(json.dumps(ASKED).encode())
        answer = asked.post(f"{PATH}/infer", content=packed, headers={"content-encoding": "gzip"})
        assert answer.json()["outputs"][0]["data"] == [6, 12, 18, 24]
        other = asked.post(f"{PATH}/infer", content=packed, headers={"content-encoding": "br"})
        assert other.status_code == 415
        two.hold.clear()
        answer = asked.post(f"{PATH}/infer", json={**ASKED, "parameters": {"timeout": 300_000}})
        assert answer.status_code == 504 and "a/b c" in answer.json()["error"]
        largest = max_body_bytes([TensorPort("x", "FP32", (2,))])
        small, calls = client([one.url]), one.calls
        assert small.post(f"{PATH}/infer", content=b"1" * (largest + 1)).status_code == 413
        assert one.calls == calls


def test_a_part_that_loses_rows_is_told_as_such():
    with stand_ins(2, 3) as (one, two):
        two.rows = 1
        answer = client([one.url], [two.url]).post(f"{PATH}/infer", json=ASKED)
        assert answer.status_code == 502 and "2 rows" in answer.json()["error"]


@pytest.mark.slow
def test_the_router_ends_when_told_to_with_what_it_took_answered(tmp_path):
    with stand_ins(2, 3) as (one, two), ThreadPoolExecutor(1) as pool:
        routes = tmp_path / "routes.json"
        write_file(routes_of([one.url], [two.url]), routes)
        command = [sys.executable, "-m", "torchsplit_core", "route", str(routes), "--port"]
        with subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            match = re.fullmatch(r"1 models at (http://127\.0\.0\.1:(\d+))/v2\n", process.stdout.readline())
            assert match is not None
            refused = subprocess.run([*command, match[2]], capture_output=True, text=True, timeout=60)
            assert refused.returncode == 2 and "--port" in refused.stderr
            two.hold.clear()
            request = Request(f"{match[1]}{PATH}/infer", json.dumps(ASKED).encode())
            taken = pool.submit(lambda: urlopen(request, timeout=60).read())
            while two.calls == 0:
                threading.Event().wait(0.01)
            process.terminate()
            threading.Event().wait(0.2)
            two.hold.set()
            assert json.loads(taken.result(60))["outputs"][0]["data"] == [6, 12, 18, 24]
            assert process.wait(60) == 0
