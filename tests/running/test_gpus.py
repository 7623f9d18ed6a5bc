"""What a node says of its GPUs while it trains, by a replayed listing, and how it is read. No hardware."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.hardware.listings import replay
from torchsplit_core.hardware import DcgmFigures, LiveGpu, live_gpus
from torchsplit_core.running.watch import Look, gpus
from torchsplit_core.running.watch.exports import RunCollector
from torchsplit_core.running.watch.gpus import gpus_told, read_gpus


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveGpu:
    """A machine of one GPU cut into two slices, of which DCGM says one figure."""
    made = replay(tmp_path, "a100_40gb_two_halves.json")
    monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(made.path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (one,) = live_gpus()[0]
    counted = replace(one, counted=DcgmFigures(sm_active=0.5))
    monkeypatch.setattr(gpus, "live_gpus", lambda: ((counted,), ""))
    return counted


def test_a_node_says_how_its_gpus_run_and_leaves_out_what_is_not_told(
    tmp_path: Path, listing: LiveGpu
) -> None:
    assert listing.state
    run, end = tmp_path / "run", time.monotonic() + 60
    run.mkdir()
    with gpus_told(run, "a"):
        while not (run / "watch" / "gpus-a.json").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    told = json.loads((run / "watch" / "gpus-a.json").read_text())
    assert told["gpus"][0]["sm_active"] == 0.5 and "dram_active" not in told["gpus"][0]
    (found,) = read_gpus(run / "watch")
    assert (found.node, found.index, found.name) == ("a", 0, listing.gpu.name)
    assert found.state == listing.state and found.counted == listing.counted
    (run / "watch" / "gpus-b.json").write_text('{"node": "b"')
    (run / "watch" / "gpus-c.json").write_text('{"node": "c", "time": "now", "gpus": [{"index": "x"}]}')
    assert len(read_gpus(run / "watch")) == 1
    (run / "events.jsonl").touch()
    exported = {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in RunCollector(Look(run)).collect()
        for sample in family.samples
    }
    assert exported["torchsplit_train_gpu_sm_active_ratio['0', 'a']"] == 0.5
    assert exported["torchsplit_train_gpu_power_watts['0', 'a']"] == listing.state.power_w
    assert not any("dram" in name for name in exported), "what is not known is left out"


@pytest.mark.parametrize(("visible", "seen"), [
    (None, True), ("0", True), ("1,0", True), ("1", False), ("", False), ("GPU-", True), ("MIG-", True), ("x", False),
])  # fmt: skip
def test_gpus_that_the_run_may_not_use_are_not_told(
    visible: str | None, seen: bool, tmp_path: Path, listing: LiveGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert bool(gpus._seen()) is seen


def test_a_node_without_gpus_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "live_gpus", lambda: ((), "No GPU"))
    with gpus_told(tmp_path, "a"):
        pass
    assert not (tmp_path / "watch").exists() and read_gpus(tmp_path / "watch") == ()
