"""What clients see: their own answers, of whole models and of cut ones; statuses, metadata, metrics."""

import http.client
import json
import os
import signal
import ssl
from pathlib import Path

import numpy as np
import pytest
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support.paths import ROOT
from tests.support.serving.doubling import children_of, doubled, x
from tests.support.serving.plans import Placed, cpu_plan
from tests.support.serving.running import running
from torchsplit_core.files import read_file
from torchsplit_core.model_source import load_client
from torchsplit_core.serving.settings import AccessSettings, ServeSettings


def test_the_public_client_gets_the_models_own_answers():
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


def test_a_cut_model_is_served_by_a_row_of_workers():
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


def test_statuses_metadata_and_metrics(doubling):
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
    for name in ([], {}, 1, None):
        assert doubling.infer("double", [dict(x(1)[0], name=name)])[0] == 400
    for timeout in (float("nan"), float("inf"), -1, 10**400, "1", [], True):
        assert doubling.infer("double", x(1), parameters={"timeout": timeout})[0] == 400
    assert doubling.ask("DELETE", "/torchsplit/tallies")[0] == 403
    text = doubling.ask("GET", "/metrics")[1]
    assert 'torchsplit_requests_total{model="double",status="200"} 1.0' in text
    assert "torchsplit_connections 1.0" in text and "torchsplit_held_bytes 0.0" in text
    assert 'torchsplit_batch_rows_sum{model="double",slice="host0/1c@0",stage="whole"} 3.0' in text
    assert 'torchsplit_queue_rows{model="double",stage="whole"} 0.0' in text


def test_numbers_that_json_lacks_come_as_bytes_alone(doubling):
    status, told = doubling.infer("double", x(3e38))
    assert status == 400 and "output_0: holds NaN or infinity" in told["error"]
    assert "as bytes" in told["error"]
    wanted = [{"name": "output_0", "parameters": {"binary_data": True}}]
    status, text = doubling.infer("double", x(3e38), outputs=wanted)
    assert status == 200 and text.endswith("@")


def test_a_token_and_tls_are_asked_for(file):
    pems = Path(__file__).parents[1] / "support/serving/tls"
    token = "a token of sixteen".replace(" ", "-")
    access = AccessSettings(("localhost",), token, str(pems / "certificate.pem"), str(pems / "key.pem"))
    plan = cpu_plan([Placed("double")], {"double": f"{file}:Client"})
    with running(plan, ServeSettings(trust=True, access=access)) as server:
        assert server.serving.url == f"https://127.0.0.1:{server.port}"
        trusted = ssl.create_default_context(cafile=pems / "certificate.pem")
        connection = http.client.HTTPSConnection("localhost", server.port, context=trusted, timeout=60)
        for headers, wanted in (({}, 401), ({"Authorization": f"Bearer {token}"}, 200)):
            connection.request("POST", "/v2/models/double/infer", json.dumps({"inputs": x(4)}), headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == wanted
        assert json.loads(text)["outputs"][0]["data"] == [8.0, 2.0]
        connection.request("DELETE", "/torchsplit/tallies", headers=headers)
        assert connection.getresponse().status == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            server.ask("GET", "/v2/health/live")
