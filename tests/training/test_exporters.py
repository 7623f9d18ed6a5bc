"""A run's figures for other tools: Prometheus scrapes them, TensorBoard reads them back, spans tell of its starts."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.training.folders import left_folder
from tests.support.training.runs import client_file, losses, strategy
from torchsplit_core import telemetry
from torchsplit_core.telemetry import read_spans
from torchsplit_core.training import RunFolder, train
from torchsplit_core.training.monitor import endpoints
from torchsplit_core.training.monitor.exporters import export_metrics
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import Exports, RunOptions

assert torch.distributed.is_available()


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


def test_prometheus_scrapes_what_the_folder_says(tmp_path: Path) -> None:
    with export_metrics(tmp_path / "run", Exports(metrics_port=0)) as port:
        assert port and scraped(port) == {}
        left_folder(tmp_path / "run", steps=5, wanted=9)
        found = scraped(port)
        assert (found["torchsplit_train_step"], found["torchsplit_train_wanted_steps"]) == (5, 9)
        assert found["torchsplit_train_loss"] == 0.4 and found["torchsplit_train_processes"] == 2
        assert found['torchsplit_train_events_total{kind="rank_lost"}'] == 1
        assert found['torchsplit_train_rank_part_seconds{part="backward",rank="1"}'] == 0.1
        assert found["torchsplit_train_checkpoint_step"] == 4
        # What is not known is no zero.
        assert not any("communication" in name or "validation" in name for name in found)
        rank = tmp_path / "run" / "watch" / "rank-1.json"
        rank.write_text(
            json.dumps(
                {
                    **json.loads(rank.read_text()),
                    "blocks_s": {"a.0": 0.5, "a.1": None},
                    "communication_s": {"agreement": 0.25},
                }
            )
        )
        RunFolder(tmp_path / "run").add_step(6, 0.3, 8, 0.2, 2, 2**20, {"validation": {"accuracy": 0.75}})
        found = scraped(port)
        assert found['torchsplit_train_validation{metric="accuracy"}'] == 0.75
        assert found["torchsplit_train_step"] == 6
        assert {name: value for name, value in found.items() if "block" in name} == {
            'torchsplit_train_rank_block_seconds{block="a.0",rank="1"}': 0.5
        }
        assert {name: value for name, value in found.items() if "communication" in name} == {
            'torchsplit_train_rank_communication_seconds{kind="agreement",rank="1"}': 0.25
        }
        assert endpoints(tmp_path / "run") == (f"http://127.0.0.1:{port}/metrics",)
    assert endpoints(tmp_path / "run") == ()
    with pytest.raises(OSError, match="refused"):
        scraped(port)


def test_every_name_that_is_served_is_told(tmp_path: Path) -> None:
    left_folder(tmp_path / "run", steps=5, wanted=9)
    figures = (
        "busy_percent", "sm_active", "dram_active", "nvlink_sent_bytes_per_s", "nvlink_received_bytes_per_s",
        "memory_used_bytes", "temperature_c", "power_w",
    )  # fmt: skip
    gpu = {"index": 0, "name": "A100", "uuid": "GPU-0", **dict.fromkeys(figures, 1)}
    told_of = {"node": "a", "time": "2090-01-01T00:00:00.000Z", "gpus": [gpu]}
    (tmp_path / "run" / "watch" / "gpus-a.json").write_text(json.dumps(told_of))
    with export_metrics(tmp_path / "run", Exports(metrics_port=0)) as port:
        assert port is not None
        names = {name.partition("{")[0] for name in scraped(port)} | {
            "torchsplit_train_rank_communication_ratio",
            "torchsplit_train_rank_block_seconds",
            "torchsplit_train_rank_communication_seconds",
            "torchsplit_train_validation",
        }
    told = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert names == set(re.findall(r"torchsplit_train_\w+", told))


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for port in (other.getsockname()[1], 70000):
            with (
                pytest.raises(InputFault, match="--metrics-port"),
                export_metrics(tmp_path, Exports(metrics_port=port)),
            ):
                pass


@pytest.mark.repeated
def test_a_killed_run_is_told_to_tensorboard_once_a_step_and_to_telemetry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TORCHSPLIT_TELEMETRY", "file")
    telemetry.configure("torchsplit", tmp_path / "spans")
    try:
        train(
            client_file(tmp_path, kill={"28": "rank"}), strategy(optimizer="adamw", micro_batch=4), tmp_path / "run",
            options=RunOptions(steps=6, checkpoint_every=2, shuffle=False), processes=2, trust=True,
            exports=Exports(tensorboard=True),
        )  # fmt: skip
    finally:
        telemetry.shutdown()
    read = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == [
        "train/loss", "train/processes", "train/samples", "train/step_seconds",
    ]  # fmt: skip
    assert [one.step for one in read.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [one.value for one in read.Scalars("train/loss")] == pytest.approx(
        losses(tmp_path / "run"), rel=1e-6
    )
    spans = [(one.name, dict(one.attributes)) for one in read_spans(tmp_path / "spans")]
    starts = [told for name, told in spans if name == "torchsplit.train.start"]
    assert ["lost" in str(told) for told in starts] == [True, False]
    (whole,) = (told for name, told in spans if name == "torchsplit.train")
    assert not any("gpu" in name for name in whole), "there is none"
    assert whole["torchsplit.step"] == 6 and whole["torchsplit.restarts"] == 1
