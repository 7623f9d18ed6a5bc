"""Work that is done as a task on a Ray cluster: what it reserves, what it gives, what is refused. Without Ray."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli import main, profile
from torchsplit_core.training.cluster import ray_tasks
from torchsplit_core.training.cluster.ray_tasks import run_on_cluster
from torchsplit_core.values import InputFault


class Failed(Exception):
    """What Ray raises for a task that raised."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class OneNode:
    """Ray of one node, whose tasks are done where they are asked for."""

    exceptions = SimpleNamespace(RayTaskError=Failed)

    def __init__(self, **resources: float) -> None:
        self.resources, self.reserved = resources, [{}]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": self.resources}]

    def remote(self, **reserved: int) -> Any:
        self.reserved.append(reserved)
        return lambda work: SimpleNamespace(remote=lambda *given, **named: lambda: work(*given, **named))

    def get(self, task: Any) -> Any:
        try:
            return task()
        except Exception as error:
            raise Failed(error) from error


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> OneNode:
    made = OneNode(CPU=4, GPU=1)

    @contextlib.contextmanager
    def there() -> Iterator[OneNode]:
        yield made

    monkeypatch.setattr(ray_tasks, "ray_cluster", there)
    return made


def test_a_simulation_on_a_cluster_gives_the_same_file(
    node: OneNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", str(ROOT / "examples" / "simulation_request.json"), "--requests", "200", "-o"]
    found, told = [], []
    for name, more in (("here", ()), ("there", ("--engine", "ray"))):
        assert main([*command, str(tmp_path / name), *more]) == 0
        told.append([line for line in capsys.readouterr().err.splitlines() if "%" not in line[:5]])
        found.append(json.loads((tmp_path / name).read_text()))
        # Seconds of the work itself.
        del found[-1]["statistics"]
    assert found[0] == found[1] and told[0] == told[1]
    assert node.reserved[-1] == {"num_cpus": 1, "num_gpus": 0}


@pytest.mark.parametrize(("device", "reserved"), [
    (None, (1, None)), ("auto", (1, None)), ("cpu", (1, 0)), ("cpu:2c, cpu:4c", (4, 0)), ("cuda", (1, 1)),
    ("cpu:2c,sm:20", (2, 1)), ("mig", (1, 1)),
])  # fmt: skip
def test_a_node_has_what_is_measured(device: str | None, reserved: tuple[int, int | None]) -> None:
    options = argparse.Namespace(device=device, make_slices=None)
    assert profile._reserved_resources(options) == reserved


def test_a_gpu_is_taken_where_there_is_one_and_more_than_there_is_is_refused(node: OneNode) -> None:
    assert run_on_cluster(max, 3, 4, gpus=None) == 4
    assert node.reserved[-1] == {"num_cpus": 1, "num_gpus": 1}
    node.resources = {"CPU": 4}
    assert run_on_cluster(max, 3, 4, cores=2, gpus=None) == 4
    assert node.reserved[-1] == {"num_cpus": 2, "num_gpus": 0}
    with pytest.raises(
        InputFault, match=r"has 0 nodes with 8 CPU, needs at least 1 \(its nodes have: 4 CPU\)"
    ):
        run_on_cluster(max, 3, 4, cores=8)


def test_a_fault_there_is_told_as_here_and_slices_are_not_made_there(
    node: OneNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "sample:nope", "--engine", "ray", "--device", "cpu"]) == 2
    assert "unknown sample 'nope'" in capsys.readouterr().err
    made = ["--make-slices", "1g.10gb", "--i-own-this-gpu"]
    assert main(["profile", "sample:bert", "--engine", "ray", *made]) == 2
    assert "which picks a GPU that others may use" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:10001", "head", "127.0.0.1:99999999"])
def test_an_address_where_no_cluster_answers_is_refused_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputFault, match=r"RAY_ADDRESS: is .*, where no Ray cluster answers"):
        run_on_cluster(max, 3, 4)
