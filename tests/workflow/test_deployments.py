"""A plan to a folder that serves: parts written, the image's context complete, its Ray application started here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from sample_models import load
from torchsplit_core import workflow
from torchsplit_core.deployment import LAYOUT_FORMATS, WORKLOAD_FORMATS
from torchsplit_core.planning import plan
from torchsplit_core.serving.routing.wire import HEADER_LENGTH, Tensor, read, write
from torchsplit_core.stages import open_stages
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    Stage,
    Variant,
)
from torchsplit_core.workflow.deployments import default_formats

SOURCE = "sample:diamond"


def asked(source: str | None = SOURCE) -> PlanRequest:
    """The diamond in two stages, each on one of a host's two cores."""
    points = (Point("CPU", "1c", 4, 100.0, 40.0, memory_gib=0.1),)
    graph = workflow.trace(SOURCE)
    names = [node.id for node in graph.nodes if node.kind == "op"]
    stages = (Stage("s0", points, tuple(names[:4])), Stage("s1", points, tuple(names[4:])))
    model = PlanModel("diamond", (Variant("cut", stages, (0.0,)),), source=source)
    return PlanRequest((FleetEntry("CPU-2c", "cpu0"),), (model,))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PlanRequest, PlanOutcome]:
    request = asked()
    outcome = plan(request)
    target = tmp_path_factory.mktemp("deployed")
    workflow.deploy(outcome, target, request=request)
    return target, request, outcome


def test_the_parts_in_the_image_are_the_model(deployed: tuple[Path, PlanRequest, PlanOutcome]) -> None:
    target, _, _ = deployed
    (folder,) = (target / "image" / "models").iterdir()
    client = load("diamond")
    inputs = client.get_example_inputs(3)
    served = json.loads(next((target / "image" / "servers").glob("*s0*/request.json")).read_text())
    assert served["models"][0]["source"] == f"models/{folder.name}/stage0.pt2"
    with torch.no_grad():
        assert torch.equal(open_stages(folder)(*inputs), client.get_model().eval()(*inputs))


def test_the_image_has_a_product_that_runs(deployed: tuple[Path, PlanRequest, PlanOutcome]) -> None:
    image = deployed[0] / "image"
    done = subprocess.run(
        [sys.executable, "-S", "-m", "torchsplit_core", "--version"],
        cwd=image,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{image}:{os.pathsep.join(sys.path)}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    ignored = (image / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert {path.name for path in image.iterdir()} - {"Dockerfile", ".dockerignore"} == kept
    for line in (image / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (image / name).exists(), name


def test_formats_that_run_need_a_request_and_those_that_cut_need_gpus(
    deployed: tuple[Path, PlanRequest, PlanOutcome], tmp_path: Path
) -> None:
    _, request, outcome = deployed
    assert default_formats(outcome, request) == WORKLOAD_FORMATS
    with pytest.raises(InputFault, match="diamond"):
        workflow.deploy(outcome, tmp_path, ("compose",))
    with pytest.raises(InputFault, match="cores alone"):
        workflow.deploy(outcome, tmp_path, LAYOUT_FORMATS, request=request)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_executed_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise RuntimeError('executed')")
    request = asked(f"{tmp_path}/net.py:Net")
    with pytest.raises(InputFault, match="--trust"):
        workflow.deploy(plan(request), tmp_path / "out", ("compose",), request=request)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ray on this machine, for one test; nothing of it stays."""
    import ray
    from ray import serve

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    yield ray
    serve.shutdown()
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_ray_application_answers_as_the_model_does(
    deployed: tuple[Path, PlanRequest, PlanOutcome],
    local_ray: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    image = deployed[0] / "image"
    monkeypatch.chdir(image)
    monkeypatch.setenv("PYTHONPATH", str(image))
    told = yaml.safe_load((deployed[0] / "ray-serve" / "serve.yaml").read_text())
    (application,) = told["applications"]
    for deployment in application["deployments"]:
        # The front is twice there for who can lose a node.
        deployment["num_replicas"] = 1
    kinds = {
        name for one in application["deployments"] for name in one["ray_actor_options"].get("resources", ())
    }
    local_ray.init(
        num_cpus=2,
        resources=dict.fromkeys(kinds, 1),
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
    )
    port = free_port()
    told["http_options"] = {"host": "127.0.0.1", "port": port}
    serve.start(http_options=told["http_options"])
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(told))
    deadline = time.monotonic() + 500
    while (state := serve.status().applications[application["name"]]).status != "RUNNING":
        assert state.status != "DEPLOY_FAILED" and time.monotonic() < deadline, state.message
        time.sleep(0.5)

    client = load("diamond")
    inputs = client.get_example_inputs(3)
    tensor = Tensor("x", "FP32", tuple(inputs[0].shape), inputs[0].numpy().tobytes())
    body, length = write({"parameters": {"binary_data_output": True}}, "inputs", [tensor])
    path = f"http://127.0.0.1:{port}/v2/models/diamond"
    request = urllib.request.Request(f"{path}/infer", body, {HEADER_LENGTH: length or ""})
    with urllib.request.urlopen(request, timeout=60) as response:
        (given,) = read(response.read(), response.headers[HEADER_LENGTH], "outputs").tensors
    with torch.no_grad():
        expected = client.get_model().eval()(*inputs)
    assert given.shape == tuple(expected.shape)
    found = torch.frombuffer(bytearray(given.data), dtype=torch.float32).reshape(given.shape)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    with urllib.request.urlopen(path, timeout=60) as response:
        told = json.load(response)
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert told["outputs"] == [{"name": "output_0", "datatype": "FP32", "shape": [-1, 16]}]
