"""A measurement in a child process: rows, shares, notes, and the questions it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from profiling_export import export, to_graph

import sample_models
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling import measure
from torchsplit_core.profiling.measurement import check_batch_sizes, check_budget, check_device
from torchsplit_core.values import InputFault, InternalFault

EXPORTER = "profiling_export:exporter"

FRAGILE = """
import torch
from torch import nn

class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        if not torch.compiler.is_compiling():
            if x.shape[0] == 3:
                raise ValueError("three is too many")
            if x.shape[0] == FULL:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return torch.relu(self.inner(x))

class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Fragile()
    def get_example_inputs(self, batch_size):
        return (torch.randn(batch_size, 4),)
"""


def sample_graph(name: str) -> TorchGraph:
    client = sample_models.load(name, "small")
    return to_graph(export(client.get_model(), client.get_example_inputs(2)))


def fragile(folder: Path, full: int) -> tuple[str, TorchGraph]:
    """A trusted Python file whose model fails at batch 3 and is out of memory at batch `full`."""
    file = folder / "fragile.py"
    file.write_text(FRAGILE.replace("FULL", str(full)))
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    client = space["Client"]()
    return f"{file}:Client", to_graph(export(client.get_model(), client.get_example_inputs(2)))


def test_a_sample_is_measured_end_to_end_and_by_operation() -> None:
    graph = sample_graph("ocr")
    heard: list[tuple[float, str]] = []
    rows, nodes, environment = measure(
        "sample:ocr", graph, device="cpu", batch_sizes=(4, 1), point_budget_s=0.02, exporter=EXPORTER,
        progress=lambda share, text: heard.append((share, text)),
    )  # fmt: skip
    assert [row.batch_size for row in rows] == [1, 4]
    for row in rows:
        assert (row.gpu_type, row.profile, row.processes, row.basis) == ("CPU", None, 1, "measured")
        assert row.low_rps is not None and row.high_rps is not None
        assert 0 < row.low_rps <= row.throughput_rps <= row.high_rps
        assert row.latency_ms >= 1000 * row.batch_size / row.throughput_rps * 0.999  # p95 is not below p50
        assert row.memory_gib and row.memory_gib > 0
    assert [node.id for node in nodes] == [node.id for node in graph.ops]
    assert sum(node.time_share for node in nodes) == pytest.approx(1.0)
    assert sum(node.peak_bytes for node in nodes) > 0
    assert environment["nodes_basis"] == "measured" and environment["eval_mode"] is True
    assert str(environment["memory_basis"]).startswith("estimated")
    assert environment["batch_4_runs"] >= 3 and environment["notes"] == ""
    shares = [share for share, _ in heard]
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_a_batch_that_fails_or_does_not_fit_is_a_note(tmp_path: Path) -> None:
    source, graph = fragile(tmp_path, full=5)
    rows, _, environment = measure(
        source,
        graph,
        device="cpu",
        batch_sizes=(2, 3, 4, 5, 6),
        trust=True,
        point_budget_s=0.02,
        exporter=EXPORTER,
    )
    assert [row.batch_size for row in rows] == [2, 4]
    notes = str(environment["notes"])
    assert "three is too many" in notes and "Batch 5 and larger left out: out of memory" in notes


def test_operations_that_cannot_be_timed_are_estimated_and_said_so(tmp_path: Path) -> None:
    source, graph = fragile(tmp_path, full=9)
    (row,), nodes, environment = measure(
        source, graph, device="cpu", batch_sizes=(1,), trust=True, point_budget_s=0.02,
        exporter="torchsplit_core.profiling.memory:estimate_memory",
    )  # fmt: skip
    assert row.batch_size == 1
    assert environment["nodes_basis"] == "estimated" and "shares are estimated" in str(environment["notes"])
    assert sum(node.time_share for node in nodes) == pytest.approx(1.0)


def test_no_batch_that_runs_is_a_fault_that_says_why(tmp_path: Path) -> None:
    source, graph = fragile(tmp_path, full=2)
    with pytest.raises(InputFault, match="three is too many"):
        measure(source, graph, device="cpu", batch_sizes=(3,), trust=True, exporter=EXPORTER)


def test_timing_another_model_than_the_traced_one_is_our_fault() -> None:
    with pytest.raises(InternalFault, match="differ"):
        measure(
            "sample:bert", sample_graph("diamond"), device="cpu", batch_sizes=(1,), point_budget_s=0.02,
            exporter=EXPORTER,
        )  # fmt: skip


@pytest.mark.parametrize("sizes", [(), (0,), (-1,), (1, 10**6), tuple(range(1, 18)), (1.5,), (True,)])
def test_bad_grids_are_refused(sizes: Any) -> None:
    with pytest.raises(InputFault, match="batch sizes"):
        check_batch_sizes(sizes)


def test_grid_is_ascending_and_each_size_once() -> None:
    assert check_batch_sizes((8, 1, 8, 2)) == (1, 2, 8)


@pytest.mark.parametrize("device", ["mig", "sm:8", "cuda", "tpu"])
def test_devices_that_are_not_here_are_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchsplit_core.hardware import HostReport

    empty = HostReport("a processor", 2, 4.0, (), "No GPU was found.")
    monkeypatch.setattr("torchsplit_core.profiling.measurement.discover_host", lambda: empty)
    with pytest.raises(InputFault, match="device"):
        check_device(device)
    assert check_device("auto") == "auto"


@pytest.mark.parametrize("budget", [0.0, -1.0, 1e9, float("nan")])
def test_bad_budgets_are_refused(budget: float) -> None:
    with pytest.raises(InputFault, match="time per point"):
        check_budget(budget)


def test_asking_for_a_measurement_loads_no_torch() -> None:
    code = "import sys, torchsplit_core.profiling; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
