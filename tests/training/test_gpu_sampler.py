"""What a node says of its GPUs while it trains, by a replayed listing, and how it is read. No hardware."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.hardware.listings import replay
from tests.support.training.runs import client_file, strategy
from torchsplit_core import telemetry
from torchsplit_core.hardware import DcgmFigures, GpuState, LiveGpu, live_gpus
from torchsplit_core.telemetry import read_spans, schema
from torchsplit_core.training import train
from torchsplit_core.training.monitor import RunReader, gpu_sampler
from torchsplit_core.training.monitor.exporters import RunCollector
from torchsplit_core.training.monitor.gpu_sampler import GPU_FIGURES, GpuAverages, read_gpus, sample_gpus
from torchsplit_core.training.monitor.run_view import NodeGpu
from torchsplit_core.values.strategy.run import Exports, RunOptions


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveGpu:
    """A machine of one GPU cut into two slices, of which DCGM says one figure."""
    made = replay(tmp_path, "a100_40gb_two_halves.json")
    monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(made.path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (one,) = live_gpus()[0]
    counted = replace(one, counted=DcgmFigures(sm_active=0.5))
    monkeypatch.setattr(gpu_sampler, "live_gpus", lambda: ((counted,), ""))
    return counted


def test_a_node_says_how_its_gpus_run_and_leaves_out_what_is_not_told(
    tmp_path: Path, listing: LiveGpu
) -> None:
    assert listing.state
    run, end = tmp_path / "run", time.monotonic() + 60
    run.mkdir()
    with sample_gpus(run, "a"):
        while not (run / "watch" / "gpus-a.json").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    told = json.loads((run / "watch" / "gpus-a.json").read_text())
    assert told["gpus"][0]["sm_active"] == 0.5 and "dram_active" not in told["gpus"][0]
    (found,) = read_gpus(run / "watch")
    assert (found.node, found.index, found.name) == ("a", 0, listing.gpu.name)
    assert found.state == listing.state and found.dcgm == listing.counted
    (run / "watch" / "gpus-b.json").write_text('{"node": "b"')
    (run / "watch" / "gpus-c.json").write_text('{"node": "c", "time": "now", "gpus": [{"index": "x"}]}')
    assert len(read_gpus(run / "watch")) == 1
    (run / "events.jsonl").touch()
    exported = {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in RunCollector(RunReader(run)).collect()
        for sample in family.samples
    }
    assert exported["torchsplit_train_gpu_sm_active_ratio['0', 'a']"] == 0.5
    assert exported["torchsplit_train_gpu_power_watts['0', 'a']"] == listing.state.power_w
    assert not any("dram" in name for name in exported), "what is not known is left out"


def test_means_are_of_what_was_told_and_a_figure_that_one_gpu_never_told_is_left_out() -> None:
    def told(index: int, power: float | None, share: float | None) -> NodeGpu:
        state = GpuState(None, None, None, power, None)
        return NodeGpu("a", index, "A100", datetime.now(UTC), state, DcgmFigures(sm_active=share))

    means = GpuAverages()
    assert means.by_name() == {}
    means.add([told(1, 100.0, 0.5), told(0, 50.0, None)])
    means.add([told(1, 300.0, None), told(0, 50.0, None)])
    assert means.by_name() == {"gpu_power_watts": [50.0, 200.0]}
    means.add([told(0, None, 0.25)])
    assert means.by_name() == {"gpu_power_watts": [50.0, 200.0], "gpu_sm_active_ratio": [0.25, 0.5]}


@pytest.mark.torch
@pytest.mark.repeated
def test_a_runs_gpus_are_told_to_tensorboard_and_telemetry(
    tmp_path: Path, listing: LiveGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was there before and is gone now is no news."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    with sample_gpus(folder, "gone"):
        pass
    monkeypatch.setenv("TORCHSPLIT_TELEMETRY", "file")
    telemetry.configure("torchsplit", tmp_path / "spans")
    try:
        train(
            client_file(tmp_path), strategy(optimizer="adamw", micro_batch=8), folder, trust=True,
            options=RunOptions(steps=2, shuffle=False), exports=Exports(tensorboard=True),
        )  # fmt: skip
    finally:
        telemetry.shutdown()
    assert listing.state and listing.state.power_w
    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    (node,) = {one.node for one in read_gpus(folder / "watch")} - {"gone"}
    figures = {"sm_active_ratio", "temperature_celsius", "power_watts"}
    tags = {f"train/gpu_{name}/{node}/0" for name in figures}
    assert {tag for tag in read.Tags()["scalars"] if "gpu" in tag} == tags
    (power,) = read.Scalars(f"train/gpu_power_watts/{node}/0")
    assert power.step in (1, 2) and power.value == pytest.approx(listing.state.power_w)
    (whole,) = (dict(one.attributes) for one in read_spans(tmp_path / "spans") if one.name == schema.TRAIN)
    told = {name: value for name, value in whole.items() if "gpu" in name}
    assert set(told) == {f"torchsplit.gpu_{name}" for name in figures}
    assert told["torchsplit.gpu_power_watts"] == (listing.state.power_w,)
    assert told["torchsplit.gpu_sm_active_ratio"] == (0.5,)


def test_every_figure_of_a_gpu_has_its_name_in_spans() -> None:
    assert {f"gpu_{name}" for name in GPU_FIGURES} == {
        name for name in schema.ATTRIBUTES if name.startswith("gpu_")
    }


@pytest.mark.parametrize(("visible", "seen"), [
    (None, True), ("0", True), ("1,0", True), ("1", False), ("", False), ("GPU-", True), ("MIG-", True), ("x", False),
])  # fmt: skip
def test_gpus_that_the_run_may_not_use_are_not_told(
    visible: str | None, seen: bool, tmp_path: Path, listing: LiveGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert bool(gpu_sampler._visible_gpus()) is seen


def test_a_node_without_gpus_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sampler, "live_gpus", lambda: ((), "No GPU"))
    with sample_gpus(tmp_path, "a") as told:
        pass
    assert told.by_name() == {}
    assert not (tmp_path / "watch").exists() and read_gpus(tmp_path / "watch") == ()
