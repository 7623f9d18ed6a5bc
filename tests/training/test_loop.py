"""A loop of one's own around `prepare`: alone, and in processes that meet as torchrun's do."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchsplit_core.strategy
from tests.support.paths import ROOT
from tests.support.training.loop import in_processes
from tests.support.training.runs import client_file, losses
from torchsplit_core.checkpoints.store import Checkpoints
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


@pytest.mark.repeated
def test_the_example_trains_digits_with_a_schedule_clipping_and_validation(tmp_path: Path) -> None:
    example = ROOT / "examples" / "training" / "digits_loop.py"
    code = ast.parse(example.read_text()).body
    lines = {node.lineno for part in code[1:] for node in ast.walk(part) if isinstance(node, ast.stmt)}
    imports = {part.lineno for part in code if isinstance(part, ast.Import | ast.ImportFrom)}
    assert len(lines - imports) <= 12
    script = (
        example.read_text()
        .replace("330", "66")
        .replace("steps=30)", "steps=6)")
        .replace("every=30", "every=22")
    )
    (tmp_path / "loop.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "loop.py", "run"], cwd=tmp_path, env=environment, check=True)
    steps = RunFolder(tmp_path / "run").steps()
    assert len(steps) == 66 and all("gradient_norm" in line for line in steps)
    assert steps[5]["learning_rate"] == 0.001 > steps[-1]["learning_rate"]
    measured = [line["validation"]["accuracy"] for line in steps if "validation" in line]
    assert len(measured) == 3 and measured[-1] == max(measured) > 0.5
    assert Checkpoints(tmp_path / "run" / "checkpoints").best is not None
