"""Two agents on one machine stand for two nodes: one is lost and comes back, the run goes on with those left."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.elastic.rendezvous import api

from tests.support.ports import free_port
from tests.support.training.runs import beside, client_file, events, losses, run, strategy
from torchsplit_core.training import RunFolder
from torchsplit_core.training.attempts import rendezvous
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import ElasticNodes

assert torch.distributed.is_available()
PLAN = strategy(optimizer="adamw", micro_batch=4)
PATIENCE_S = 120.0
WAITS_S = 10 * PATIENCE_S
"""A rank that waits for a test to go on does not hang."""


def until(seen: Callable[[], Any]) -> None:
    """Wait for something that happens elsewhere."""
    end = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


class Other:
    """Node b, in a process that can be killed."""

    def __init__(self, source: str, folder: Path, port: int) -> None:
        nodes = ElasticNodes(1, 2, f"127.0.0.1:{port}", "b")
        self.process = beside(run, source, folder, PLAN, 1, nodes=nodes, stall_limit_s=WAITS_S)

    def kill(self) -> None:
        """End it as a node that loses its power ends."""
        assert self.process.pid
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def worlds(folder: Path) -> dict[int, int]:
    """Processes by step."""
    return {line["step"]: line["world_size"] for line in RunFolder(folder).steps()}


@pytest.mark.repeated
def test_a_lost_node_is_gone_on_without_and_comes_back(
    undisturbed_plainly: list[float], tmp_path: Path
) -> None:
    """Node b serves the store and is killed with its rank in step 4; node a waits for its return in step 6."""
    source = client_file(tmp_path, gates=[24, 40])
    folder, port = tmp_path / "run", free_port()
    others = [Other(source, folder, port)]
    until(lambda: (folder / "logs").exists() and list((folder / "logs").glob("start-*")))

    def disturb() -> None:
        until(lambda: worlds(folder).get(3) == 2)
        others[0].kill()
        (tmp_path / "client" / "open-24").touch()
        until(lambda: worlds(folder).get(5) == 1)
        others.append(Other(source, folder, port))
        until(lambda: len(events(folder, "scaled")) == 2)
        (tmp_path / "client" / "open-40").touch()

    thread = threading.Thread(target=disturb)
    thread.start()
    here = ElasticNodes(1, 2, f"127.0.0.1:{port}", "a")
    summary = run(source, folder, PLAN, 1, nodes=here, stall_limit_s=WAITS_S)
    thread.join()
    others[1].process.join()
    assert (summary.step, others[1].process.exitcode) == (6, 0)
    assert losses(folder) == pytest.approx(undisturbed_plainly, abs=1e-6)
    assert worlds(folder)[6] == 2
    gone, back = [event["words"] for event in events(folder, "scaled")]
    assert "on a: b is gone; the global batch as it was" in gone and "b has come" in back
    assert [event["node"] for event in events(folder, "node_joined")] == ["b", "a", "b"]
    assert {event["node"] for event in events(folder, "joined")} == {"a", "b"}


@pytest.mark.repeated
def test_a_node_whose_rank_is_killed_at_the_very_end_leaves_none_waiting(tmp_path: Path) -> None:
    """The first rank dies when it has left that all is done: both commands end well, and nothing is done again."""
    source, folder = client_file(tmp_path, end=[0, "barrier"]), tmp_path / "run"
    address = f"127.0.0.1:{free_port()}"
    other = beside(run, source, folder, PLAN, 1, nodes=ElasticNodes(2, 2, address, "b"))
    summary = run(source, folder, PLAN, 1, nodes=ElasticNodes(2, 2, address, "a"))
    other.join()
    assert (tmp_path / "client" / "killed-end").exists()
    assert (summary.step, summary.restarts, other.exitcode, len(losses(folder))) == (6, 0, 0, 6)
    assert not events(folder, "others_lost") and not events(folder, "rank_lost")


def test_a_port_that_is_taken_between_its_choice_and_its_use_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents choose one at which somebody else answers, mutely, when the ranks come to meet."""
    source = client_file(tmp_path)
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setattr(api, "get_free_port", lambda: taken.getsockname()[1])
        nodes = ElasticNodes(1, 1, f"127.0.0.1:{free_port()}", "a")
        summary = run(source, tmp_path / "run", PLAN, 2, nodes=nodes)
    assert (summary.step, summary.restarts) == (6, 0)


def test_what_nodes_cannot_agree_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "STORE_TIMEOUT_S", 1)
    source = client_file(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nodes = ElasticNodes(1, 1, f"127.0.0.1:{taken.getsockname()[1]}", "a")
        with pytest.raises(InputFault, match=r"--rendezvous.*where something else answers"):
            run(source, tmp_path / "run", PLAN, 1, nodes=nodes)
    folder = RunFolder(tmp_path / "other", "a")
    here = ElasticNodes(1, 2, "127.0.0.1:29500", "a")
    with folder.shared(here.rendezvous, resume=False):
        with pytest.raises(InputFault, match="a name of its own"):
            run(source, tmp_path / "other", PLAN, 1, nodes=here)
        with pytest.raises(InputFault, match="in use"):
            run(source, tmp_path / "other", PLAN, 1)
        elsewhere = ElasticNodes(1, 2, "127.0.0.1:29501", "b")
        with pytest.raises(InputFault, match="in use"):
            run(source, tmp_path / "other", PLAN, 1, nodes=elsewhere)
        with RunFolder(tmp_path / "other", "b").shared(here.rendezvous, resume=False):
            pass
    with pytest.raises(InputFault, match="multiple of the 2"):
        run(source, tmp_path / "third", strategy(tensor=2, shard="fsdp"), 1, nodes=here)
    for bad in ((0, 1, "h:1", "a"), (2, 1, "h:1", "a"), (1, 2, "h", "a"), (1, 2, "h:0", "a"), (1, 2, ":1", "a"),
                (1, 2, "h:65536", "a"), (1, 2, "h:1", "a/b"), (1, 2, "h:1", "")):  # fmt: skip
        with pytest.raises(InputFault, match=r"--nnodes|--rendezvous|--node"):
            ElasticNodes(*bad)
