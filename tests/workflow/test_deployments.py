"""A plan to a folder that serves: parts written, the image's context complete, its Ray application started here."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from google.protobuf import text_format
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tritonclient.grpc import model_config_pb2

from sample_models import load
from tests.support.deployment.triton_backend import Repository, Served, TritonError
from tests.support.ports import free_port
from torchsplit_core import workflow
from torchsplit_core.deployment import LAYOUT_FORMATS, WORKLOAD_FORMATS
from torchsplit_core.deployment.image import requirements
from torchsplit_core.planning import plan
from torchsplit_core.serving.protocol.client import RawTensor, decode_outputs, encode_request
from torchsplit_core.serving.protocol.http_body import content_headers
from torchsplit_core.serving.protocol.tensors import LENGTH_HEADER
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
def deployed(tmp_path_factory) -> tuple[Path, PlanRequest, PlanOutcome]:
    request = asked()
    outcome = plan(request)
    target = tmp_path_factory.mktemp("deployed")
    workflow.deploy(outcome, target, request=request)
    return target, request, outcome


def test_the_parts_in_the_image_are_the_model(deployed):
    target, _, _ = deployed
    (folder,) = (target / "image" / "models").iterdir()
    client = load("diamond")
    inputs = client.get_example_inputs(3)
    served = json.loads(next((target / "image" / "servers").glob("*s0*/request.json")).read_text())
    assert served["models"][0]["source"] == f"models/{folder.name}/stage0.pt2"
    with torch.no_grad():
        assert torch.equal(open_stages(folder)(*inputs), client.get_model().eval()(*inputs))


def test_the_image_has_a_product_that_runs(deployed):
    image = deployed[0] / "image"
    done = subprocess.run(
        [sys.executable, "-S", "-m", "torchsplit_core", "--version"], cwd=image,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{image}:{os.pathsep.join(sys.path)}"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ignored = (image / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert {path.name for path in image.iterdir()} - {"Dockerfile", ".dockerignore"} == kept
    for line in (image / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (image / name).exists(), name


def test_formats_that_run_need_a_request_and_those_that_cut_need_gpus(deployed, tmp_path):
    _, request, outcome = deployed
    assert default_formats(outcome, {}) == WORKLOAD_FORMATS
    with pytest.raises(InputFault, match="diamond"):
        workflow.deploy(outcome, tmp_path, ("compose",))
    with pytest.raises(InputFault, match="only cores"):
        workflow.deploy(outcome, tmp_path, LAYOUT_FORMATS, request=request)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_executed_needs_trust(tmp_path):
    (tmp_path / "net.py").write_text("raise RuntimeError('executed')")
    request = asked(f"{tmp_path}/net.py:Net")
    with pytest.raises(InputFault, match="--trust"):
        workflow.deploy(plan(request), tmp_path / "out", ("compose",), request=request)


def answers_as_the_model_does(path: str) -> None:
    """Three rows in binary give what the model gives."""
    client = load("diamond")
    inputs = client.get_example_inputs(3)
    tensor = RawTensor("x", "FP32", tuple(inputs[0].shape), inputs[0].numpy().tobytes())
    body, length = encode_request([tensor])
    request = urllib.request.Request(f"{path}/infer", body, content_headers(length))
    with urllib.request.urlopen(request, timeout=60) as response:
        (given,) = decode_outputs(response.read(), response.headers[LENGTH_HEADER])
    with torch.no_grad():
        expected = client.get_model().eval()(*inputs)
    assert given.shape == tuple(expected.shape)
    found = torch.frombuffer(bytearray(given.data), dtype=torch.float32).reshape(given.shape)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_triton_repositories_answer_as_the_model_does(deployed, monkeypatch):
    """Each model.py in a stand-in for Triton's Python backend, the ensemble's steps asking the stages' servers."""
    target, image = deployed[0] / "triton", deployed[0] / "image"
    client = load("diamond")
    inputs = client.get_example_inputs(3)
    with torch.no_grad():
        expected = client.get_model().eval()(*inputs).numpy()
    kinds = sorted(path for path in target.iterdir() if path.name not in ("entry", "start"))
    parts = {one.name: Repository(kind, image, monkeypatch) for kind in kinds for one in kind.iterdir()}
    entry_text = "".join(path.read_text() for path in (target / "entry").glob("*/config.pbtxt"))
    with ExitStack() as stack:
        moved = {}
        for name, repository in parts.items():
            config = text_format.Parse(
                (target / "entry" / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
            )
            ((url, _),) = json.loads(config.parameters["servers"].string_value)
            moved[url] = stack.enter_context(Served(repository)).url
            assert url in entry_text
        entered = Repository(target / "entry", image, monkeypatch, moved)
        (given,) = entered.infer("diamond", {"x": inputs[0].numpy()}).values()
        np.testing.assert_allclose(given, expected, rtol=1e-6, atol=1e-6)
        with pytest.raises(TritonError, match=r"diamond-s0.*500"):
            entered.infer("diamond", {"x": np.zeros((1, 15), np.float32)})

    # Requests that Triton put in a batch are one run, each with its own rows; only one at fault fails.
    first = parts["diamond-s0"]
    rows, wrong = inputs[0].numpy(), np.zeros((1, 15), np.float32)
    whole = first.batch("diamond-s0", [{"x": rows}])[0].output_tensors()
    apart = first.batch("diamond-s0", [{"x": rows[:1]}, {"x": rows[1:]}])
    assert [len(one.output_tensors()[0].as_numpy()) for one in apart] == [1, 2]
    for number, tensor in enumerate(whole):
        joined = np.concatenate([one.output_tensors()[number].as_numpy() for one in apart])
        np.testing.assert_allclose(joined, tensor.as_numpy(), rtol=1e-6, atol=1e-6)
    good, bad = first.batch("diamond-s0", [{"x": rows[:1]}, {"x": wrong}])
    assert not good.has_error() and len(good.output_tensors()) == len(whole)
    assert bad.has_error() and not bad.output_tensors()


def test_a_stage_that_no_triton_server_answers_for_is_an_error(deployed, monkeypatch):
    target = deployed[0] / "triton" / "entry"
    gone = Repository(target, deployed[0] / "image", monkeypatch, {"host.docker.internal": "127.0.0.1"})
    with pytest.raises(TritonError, match="diamond-s0: 503"):
        gone.infer("diamond", {"x": np.zeros((1, 16), np.float32)})


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent = set(sys.stdin.read().split())
sys.meta_path.insert(0, Absent())
import torchsplit_core.cli.command
import torchsplit_core.serving.frontend.server, torchsplit_core.serving.load_test
import torchsplit_core.serving.router.server, torchsplit_core.serving.router.app
import torchsplit_core.serving.model_runner, torchsplit_core.serving.worker
import torchsplit_core.stages.staged_model
print("pandas" in absent, "torch" in sys.modules)
"""


def test_the_image_has_every_package_that_its_server_needs():
    """What it does not install is hidden, and everything that serves is imported."""
    there = set()
    following = [re.split("[=;]", line)[0] for line in requirements().splitlines()]
    while following:
        name = canonicalize_name(following.pop())
        if name in there:
            continue
        there.add(name)
        needed = [Requirement(line) for line in distribution(name).requires or ()]
        following += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    absent = [
        module
        for module, names in packages_distributions().items()
        if not {canonicalize_name(name) for name in names} & {*there, "torchsplit", "pip", "setuptools"}
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], input=" ".join(absent), capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.repeated
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_servers_and_the_router_of_a_cut_model_answer_as_it_does(deployed, tmp_path):
    """What the units start: a server for each slice, and one address in front of them."""
    image = deployed[0] / "image"
    text = (deployed[0] / "systemd" / "routes.json").read_text()
    started = []
    try:
        for kind in sorted((image / "servers").iterdir()):
            served = json.loads((kind / "plan.json").read_text())["models"][0]["name"]
            port = free_port()
            (url,) = {
                server["url"]
                for step in json.loads(text)["models"][0]["steps"]
                for server in step["servers"]
                if step["model"] == served
            }
            text = text.replace(url, f"http://127.0.0.1:{port}")
            cores = sorted(os.sched_getaffinity(0))
            served_by = {"TORCHSPLIT_SERVER": kind.name, "TORCHSPLIT_PORT": str(port)}
            started.append(entry(image, served_by, core=cores[len(started) % len(cores)]))
        assert len(started) == 2
        (tmp_path / "routes.json").write_text(text)
        port = free_port()
        routes = {"TORCHSPLIT_ROUTES": str(tmp_path / "routes.json"), "TORCHSPLIT_PORT": str(port)}
        started.append(entry(image, routes))
        deadline = time.monotonic() + 400
        while not ready(port):
            assert all(process.poll() is None for process in started) and time.monotonic() < deadline
            time.sleep(0.2)
        answers_as_the_model_does(f"http://127.0.0.1:{port}/v2/models/diamond")
        for process in started:
            process.terminate()
        assert [process.wait(60) for process in started] == [0, 0, 0]
    finally:
        for process in started:
            process.kill()


def entry(image: Path, environment: dict[str, str], core: int | None = None) -> subprocess.Popen[bytes]:
    """What a container runs, with this interpreter as its python; on one core where its unit says AllowedCPUs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    held = [] if core is None else ["taskset", "--cpu-list", str(core)]
    return subprocess.Popen(
        [*held, "bash", "entrypoint.sh"], cwd=image, env={**os.environ, **environment, "PATH": path}
    )


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture
def local_ray(monkeypatch) -> Iterator[Any]:
    """Ray on this machine, for one test; nothing of it stays."""
    import ray
    from ray import serve

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    yield ray
    serve.shutdown()
    ray.shutdown()


@pytest.mark.repeated
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_ray_application_answers_as_the_model_does(deployed, local_ray, monkeypatch, tmp_path):
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
        num_cpus=2, resources=dict.fromkeys(kinds, 1), include_dashboard=False,
        object_store_memory=100_000_000, log_to_driver=False,
    )  # fmt: skip
    port = free_port()
    told["http_options"] = {"host": "127.0.0.1", "port": port}
    serve.start(http_options=told["http_options"])
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(told))
    deadline = time.monotonic() + 500
    while (state := serve.status().applications[application["name"]]).status != "RUNNING":
        assert state.status != "DEPLOY_FAILED" and time.monotonic() < deadline, state.message
        time.sleep(0.5)

    path = f"http://127.0.0.1:{port}/v2/models/diamond"
    answers_as_the_model_does(path)
    with urllib.request.urlopen(path, timeout=60) as response:
        told = json.load(response)
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert told["outputs"] == [{"name": "output_0", "datatype": "FP32", "shape": [-1, 16]}]
