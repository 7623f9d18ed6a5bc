"""From profiles to an answer: what each command writes is read by the next, and the servers of a deployment are started
by what stands in its files."""

import functools
import json
import shutil
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from sample_models import load
from tests.support.deployment.started import Host, started
from torchsplit_core.cli.command import main
from torchsplit_core.files import write_file
from torchsplit_core.serving.protocol.client import RawTensor, decode_outputs, encode_request
from torchsplit_core.serving.protocol.http_body import content_headers
from torchsplit_core.serving.protocol.tensors import LENGTH_HEADER
from torchsplit_core.values import Profile, ProfileRow
from torchsplit_core.values.serving.datatypes import OF_TORCH

ROWS = 3
ON_A_CORE = ProfileRow("whole", "CPU", "1c", 2, 1, 500.0, 4.0, 480.0, 520.0, 0.1, "measured")
PROFILED = {"bert": replace(ON_A_CORE, processes=2), "ocr": ON_A_CORE}
"""Models with what was measured of each; bert has two processes on its slice. The diamond is measured here, and cut."""
NAMES = ("diamond", *PROFILED)


def run(*words: str | Path) -> None:
    """A command as it is typed."""
    assert main([str(word) for word in words]) == 0


@pytest.fixture(scope="module")
def profiles(tmp_path_factory) -> Path:
    """A profile of each model on a core, and the cut of one."""
    folder = tmp_path_factory.mktemp("profiles")
    for name, row in PROFILED.items():
        write_file(Profile(f"sample:{name}", "0" * 64, rows=(row,)), folder / f"{name}.json")
    run(
        "profile", "sample:diamond", "--device", "cpu:1c", "--batch-sizes", "2", "--point-budget", "0.01",
        "--gpu-types", "A30-24GB", "-o", folder / "diamond.json",
    )  # fmt: skip
    run(
        "partition", "sample:diamond", "--profile", folder / "diamond.json", "--stages", "2", "--top-k", "1",
        "-o", folder / "cuts.json",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def deployments(profiles, tmp_path_factory) -> Callable[[int], Path]:
    """By how many they are: the first models, planned on two cores of a host and deployed in every format."""

    @functools.cache
    def deployed(count):
        folder, names = tmp_path_factory.mktemp("deployed"), NAMES[:count]
        run(
            "request", *(profiles / f"{name}.json" for name in names), "--candidates", profiles / "cuts.json",
            "--gpus", "cpu0=CPU-2c@layouts=2x1c", "--demand", ",".join(f"{name}=5" for name in names),
            "--forbid", "diamond=whole", "--sharing", "fractional", "-o", folder / "request.json",
        )  # fmt: skip
        run("plan", folder / "request.json", "-o", folder / "plan.json")
        run("deploy", folder / "plan.json", "--request", folder / "request.json", "-o", folder / "deployed")
        return folder

    return deployed


def asked(host: Host, name: str) -> tuple[torch.Tensor, ...]:
    """What the address answers for the model's example."""
    path = f"{host.url}/v2/models/{name}"
    with urllib.request.urlopen(path, timeout=60) as answer:
        metadata = json.load(answer)
    inputs = [tensor.contiguous() for tensor in load(name).get_example_inputs(ROWS)]
    sent = [
        RawTensor(
            port["name"], OF_TORCH[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape),
            tensor.numpy().tobytes(),
        )
        for port, tensor in zip(metadata["inputs"], inputs, strict=True)
    ]  # fmt: skip
    body, length = encode_request(sent)
    request = urllib.request.Request(f"{path}/infer", body, content_headers(length))
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = decode_outputs(answer.read(), answer.headers[LENGTH_HEADER])
    dtypes = {datatype: getattr(torch, dtype) for dtype, datatype in OF_TORCH.items()}
    return tuple(
        torch.frombuffer(bytearray(one.data), dtype=dtypes[one.datatype]).reshape(one.shape) for one in found
    )


def in_process(name: str) -> list[Any]:
    """What the model itself gives for it."""
    client = load(name)
    with torch.no_grad():
        return list(tree_leaves(client.get_model().eval()(*client.get_example_inputs(ROWS))))


@pytest.mark.repeated
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("format_name", ["compose", "systemd", "slurm"])
@pytest.mark.parametrize("count", [3, 2])
def test_what_a_deployment_starts_answers_as_the_models_do(deployments, tmp_path, count, format_name):
    folder, names = deployments(count), NAMES[:count]
    plan = json.loads((folder / "plan.json").read_text())
    tenants = [one for gpu in plan["gpus"] for item in gpu["slices"] for one in item["tenants"]]
    assert {tenant["processes"] for tenant in tenants if tenant["model"] == "bert"} == {2}
    assert len({tenant["stage"] for tenant in tenants if tenant["model"] == "diamond"}) == 2
    shutil.copytree(folder / "deployed", tmp_path / "deployed")
    with started(tmp_path / "deployed", format_name, tmp_path / "host") as host:
        for name in names:
            torch.testing.assert_close(list(asked(host, name)), in_process(name), rtol=1e-5, atol=1e-6)
        # The job tells its steps to end, and that it was told so itself.
        assert set(host.end()) == ({143} if format_name == "slurm" else {0})
