"""A loop of one's own around `prepare`: alone, and in processes that meet as torchrun's do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchsplit_core.strategy
from tests.support.training.loop import in_processes
from tests.support.training.runs import client_file, losses
from torchsplit_core.training import RunFolder

assert torch.distributed.is_available()

REQUEST = """{"format": "torchsplit.strategy_request", "version": 1,
 "model": {"kind": "source", "source": "client.py:client"},
 "fleet": [{"nodes": 1, "gpus_per_node": 2, "type": "CPU-2c"}],
 "training": {"global_batch": 8, "precision": "fp32"}, "fix": {"shard": "fsdp", "micro_batch": 4}}"""


def test_three_lines_around_a_loop_train_alone_and_go_on_in_two_processes(
    undisturbed_plainly: list[float], tmp_path: Path
) -> None:
    source = client_file(tmp_path)
    (tmp_path / "s.json").write_text(REQUEST)
    for count, steps in ((1, 3), (2, 6)):
        ended = in_processes(count, source.partition(":")[0], tmp_path / "s.json", tmp_path / "run", steps)
        assert ended == [0] * count
    assert [line["world_size"] for line in RunFolder(tmp_path / "run").steps()] == [1] * 3 + [2] * 3
    assert losses(tmp_path / "run") == pytest.approx(undisturbed_plainly, abs=1e-6)


def test_training_has_it_by_name_and_no_other() -> None:
    assert callable(torchsplit_core.training.prepare)
    with pytest.raises(AttributeError, match="no attribute 'prepared'"):
        torchsplit_core.training.prepared  # noqa: B018
