"""A run on a Ray cluster of two nodes on this machine, one of which is lost and comes again; and what is refused."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.training.runs import client_file, events, losses, strategy
from tests.training.test_nodes import worlds
from torchsplit_core.cli import main
from torchsplit_core.files import read_file
from torchsplit_core.training.cluster import Fleet, ray_launcher
from torchsplit_core.training.cluster.ray_launcher import count_usable_nodes, train_on_ray
from torchsplit_core.training.cluster.ray_node import NodeResult, NodeTask, run_node
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions, RunSummary

assert torch.distributed.is_available()
PLAN = strategy(optimizer="adamw", micro_batch=4)
STRATEGY = str(ROOT / "examples" / "training" / "two_ranks.json")
PATIENCE_S = 400.0
ALONE = Fleet(1, 2, 1, 1, None)


def until(seen: Callable[[], Any]) -> None:
    """Wait for something that happens elsewhere: the cluster's processes load torch first."""
    end = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head that computes nothing, and no other node yet."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray writes a token under HOME where it asks for one.
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.mark.repeated
@pytest.mark.timeout(900)
def test_a_lost_node_of_the_cluster_is_gone_on_without_and_another_takes_its_place(
    cluster: Any, undisturbed_plainly: list[float], tmp_path: Path
) -> None:
    source, folder = client_file(tmp_path, gates=[24, 40]), tmp_path / "run"
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    with pytest.raises(InputFault, match="has 2 nodes with 1 CPU, needs at least 3"):
        train_on_ray(source, PLAN, Fleet(3, 3, 1, 1, None), folder, trust=True)

    def lose_one_and_add_another() -> None:
        until(lambda: worlds(folder).get(3) == 2)
        cluster.remove_node(nodes[1], allow_graceful=False)
        (tmp_path / "client" / "open-24").touch()
        until(lambda: worlds(folder).get(5) == 1)
        cluster.add_node(num_cpus=1)
        until(lambda: len(events(folder, "scaled")) == 2)

    options = RunOptions(steps=6, checkpoint_every=2, shuffle=False)
    # Ray starts nodes in the main thread alone.
    with ThreadPoolExecutor(1) as beside:
        started = beside.submit(train_on_ray, source, PLAN, ALONE, folder, options=options, trust=True)
        try:
            lose_one_and_add_another()
        finally:
            for gate in (24, 40):
                (tmp_path / "client" / f"open-{gate}").touch()
        summary = started.result()
    assert summary.step == 6 and summary.restarts >= 1
    assert losses(folder) == pytest.approx(undisturbed_plainly, abs=1e-6)
    assert worlds(folder)[6] == 2
    names = {event["node"] for event in events(folder, "node_joined")}
    assert len(names) == 3 and {name[:7] for name in names} == {"node-0-", "node-1-"}


@pytest.mark.repeated
@pytest.mark.timeout(900)
def test_a_profile_is_measured_on_a_node(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.add_node(num_cpus=2, env_vars={"TORCHSPLIT_HOME": str(tmp_path / "home")})
    command = ["profile", "sample:diamond", "--engine", "ray", "--device", "cpu:2c", "--batch-sizes", "1"]
    out = tmp_path / "profile.json"
    assert main([*command, "--gpu-types", "A30-24GB", "--point-budget", "0.1", "-o", str(out)]) == 0
    found = read_file(str(out), expected="torchsplit.profile")[1]
    assert any(row.basis == "measured" and row.profile == "2c" for row in found.rows)
    assert (tmp_path / "home").exists(), "measured points are kept where they were measured"
    assert main(["profile", "sample:nope", "--engine", "ray", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("torchsplit: unknown sample")


class Lost(Exception):
    """What Ray raises for a task that it lost."""


class Scripted:
    """Ray as far as a run's tasks need it: they end as they are told, in that order, one at a look."""

    def __init__(self, *ends: tuple[int, NodeResult | Exception]) -> None:
        self.ends, self.exceptions = list(ends), SimpleNamespace(RayError=Lost)
        self.started: list[int] = []
        self.cancelled: list[int] = []

    def remote(self, **options: Any) -> Any:
        assert (options["num_cpus"], options["num_gpus"], options["max_retries"]) == (8, 2, -1)
        return lambda function: SimpleNamespace(remote=self._begin)

    def _begin(self, task: NodeTask, place: int) -> tuple[int, int]:
        self.started.append(place)
        return place, len(self.started)

    def wait(self, tasks: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        return [one for one in tasks if self.ends and one[0] == self.ends[0][0]], []

    def get(self, task: Any) -> NodeResult:
        end = self.ends.pop(0)[1]
        if isinstance(end, Exception):
            raise end
        return end

    def cancel(self, task: Any) -> None:
        self.cancelled.append(task[0])


DONE, KILLED = NodeResult(summary=RunSummary(6, 1.5, 2)), NodeResult(message="its agent ended with -9")
REFUSED = NodeResult(fault=InputFault("the loss", "is nan, not a finite number", "Look at it."))


def of_nodes(least: int, *ends: tuple[int, NodeResult | Exception]) -> tuple[Scripted, Any]:
    ray = Scripted(*ends)
    task = NodeTask(
        "sample:bert", False, PLAN, RunOptions(), "run", Fleet(least, 2, 2, 4, ""), "h:1", "shown"
    )
    return ray, ray_launcher._NodeTasks(ray, object(), task)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what does not come."""
    monkeypatch.setattr(ray_launcher, "STRAGGLER_WAIT_S", 0.2)


@pytest.mark.usefixtures("at_once")
def test_an_agent_that_was_killed_is_started_again_some_times() -> None:
    again = NodeResult(summary=RunSummary(6, 1.5, 3))
    ray, nodes = of_nodes(2, (0, KILLED), (0, Lost()), (0, DONE), (1, again))
    assert nodes.supervise() == 3
    assert ray.started == [0, 1, 0, 0] and ray.cancelled == []
    ray, nodes = of_nodes(2, (0, DONE), (1, KILLED))
    assert nodes.supervise() == 2 and ray.started == [0, 1]
    ray, nodes = of_nodes(2, *[(0, KILLED)] * 4)
    with pytest.raises(InputFault, match="its agent ended with -9"):
        nodes.supervise()
    assert ray.started == [0, 1, 0, 0, 0] and ray.cancelled == [1]


@pytest.mark.usefixtures("at_once")
def test_a_node_that_refuses_is_gone_on_without_while_there_are_enough() -> None:
    ray, nodes = of_nodes(1, (0, REFUSED), (1, DONE))
    assert nodes.supervise() == 2 and ray.started == [0, 1]
    ray, nodes = of_nodes(2, (0, REFUSED))
    with pytest.raises(InputFault, match="the loss: is nan"):
        nodes.supervise()
    assert ray.cancelled == [1]
    ray, nodes = of_nodes(1, (1, NodeResult(stopped=True)))
    with pytest.raises(KeyboardInterrupt):
        nodes.supervise()
    assert ray.cancelled == [0]


def test_what_no_cluster_could_place_is_refused_before_it_waits() -> None:
    def node(cores: float, gpus: float = 0.0, alive: bool = True) -> dict[str, Any]:
        return {"Alive": alive, "Resources": {"CPU": cores, **({"GPU": gpus} if gpus else {})}}

    fleet = Fleet(1, 3, 2, 4, "a100")
    there = [node(8, 2), node(8), node(4, 8), node(64, 8, alive=False), node(16, 4)]
    assert count_usable_nodes(there, fleet) == 2
    assert count_usable_nodes(there, Fleet(1, 1, 2, 4, "")) == 1
    assert count_usable_nodes(there, Fleet(1, 9, 2, 4, None)) == 3
    with pytest.raises(InputFault, match=r"has 0 nodes with 8 CPU and 2 GPU, needs at least 1 "
                       r"\(its nodes have: 8 CPU and 0 GPU\)"):  # fmt: skip
        count_usable_nodes([node(8)], fleet)


def test_a_folder_that_a_node_does_not_see_is_refused_there(tmp_path: Path) -> None:
    task = NodeTask("s", False, PLAN, RunOptions(), str(tmp_path), ALONE, "h:1", str(tmp_path / "shown"))
    end = run_node(task, 0, "0123456789")
    assert end.fault and "which node 0123456789 does not see" in str(end.fault)


def test_without_ray_the_command_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["train", "sample:bert", "--strategy", STRATEGY, "--engine", "ray", "-o", str(tmp_path / "run")]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "pip install 'torchsplit[ray]'" in told and told.count("\n") == 1
    for more in (["--rendezvous", "h:1"], ["--image", "x"], ["--write-fleet", "slurm"]):
        assert main([*command, *more]) == 2 and "Leave it out" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
