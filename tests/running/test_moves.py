"""Blocks of a pipeline that move to other stages: how they are dealt out, when, and runs in which they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.running.runs import client_file, events, losses, run, strategy

assert torch.distributed.is_available()
EXACT = 1e-6
SAMPLES = 80


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process."""
    folder = tmp_path_factory.mktemp("alone_unmoved")
    source = client_file(folder, samples=SAMPLES, blocks=4)
    run(source, folder / "run", strategy(optimizer="adamw", micro_batch=8), 1, steps=9, checkpoint_every=100)
    return losses(folder / "run")


def test_blocks_leave_a_slow_rank_and_a_kill_right_after_goes_on_with_the_new_stages(
    alone: list[float], tmp_path: Path
) -> None:
    """Rank 1 is slow in each block. After step 6 one moves; a rank dies in step 7, the first with the new stages."""
    source = client_file(
        tmp_path, samples=SAMPLES, blocks=4, slow_blocks=0.03, quick_moves=True, kill={"52": "rank"}
    )
    plan = strategy(optimizer="adamw", pipeline=2, micro_batch=4)
    summary = run(source, tmp_path / "run", plan, 2, steps=9, checkpoint_every=100, balance=True)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    (moving,) = events(tmp_path / "run", "layers_moving")
    assert moving["words"].startswith(
        "moves blocks.2 from stage 1 to stage 0 after step 6: a micro-batch takes 0.0"
    )
    assert "3 steps are left, the move takes about 0 s" in moving["words"] and moving["rank"] == 1
    (moved,) = events(tmp_path / "run", "layers_moved")
    assert re.match(r"moved blocks\.2 from stage 1 to stage 0 in \d+(\.\d+)? s, of which", moved["words"])
    assert events(tmp_path / "run", "checkpoint")[0]["words"].startswith("checkpoint of step 6 is complete")
    assert summary.restarts == 1 and len(events(tmp_path / "run", "rank_lost")) == 1
    (begun,) = events(tmp_path / "run", "started")
    assert begun["words"].endswith("2 stages of blocks: blocks.0 to blocks.1, blocks.2 to blocks.3")
    resumed = [event["words"] for event in events(tmp_path / "run", "resumed")]
    assert len(resumed) == 2
    for words in resumed:
        assert words.startswith("goes on after step 6") and words.endswith("blocks.0 to blocks.2, blocks.3")
