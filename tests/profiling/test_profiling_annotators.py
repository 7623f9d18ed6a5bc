"""Operations are timed under the names of the graph; runs are summarised as promised."""

from __future__ import annotations

from math import comb
from typing import Any

import pytest
import torch
from profiling_export import export, to_graph
from torch import nn

import sample_models
from torchsplit_core.profiling import DeviceAnnotator, RuntimeAnnotator
from torchsplit_core.profiling.annotators import LEAST_RUNS, split_inputs, time_runs
from torchsplit_core.profiling.statistics import median_ranks, percentile, summarise
from torchsplit_core.values import InternalFault


@pytest.mark.parametrize("name", ["clip", "ocr", "cond"])
def test_every_operation_is_timed_under_its_name_in_the_graph(name: str) -> None:
    client = sample_models.load(name, "small")
    exported = export(client.get_model(), client.get_example_inputs(2))
    graph = to_graph(exported)
    timings = RuntimeAnnotator(exported).annotate(client.get_example_inputs(2), budget_s=0.01)
    assert [item.id for item in timings] == [node.id for node in graph.ops]
    for item in timings:
        assert item.runs >= 2
        assert 0 <= item.least_ms <= item.mean_ms <= item.most_ms
        assert item.device == "cpu"
    tensors = {node.id: node.output_bytes for node in graph.ops if node.shape is not None}
    assert {item.id: item.output_bytes for item in timings if item.id in tensors} == tensors


class Keyword(nn.Module):
    """Takes keyword arguments, in an order that differs from the caller's, and notes whether it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.calls = 0
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, x: torch.Tensor, *, plus: torch.Tensor, minus: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.calls += 1
            self.modes.add((self.training, torch.is_grad_enabled()))
        return x * self.scale + plus - minus


def test_keyword_arguments_reach_their_places_and_grid_covers_every_batch() -> None:
    def inputs(batch: int) -> Any:
        return (torch.ones(batch, 4),), {"minus": torch.ones(batch, 4), "plus": torch.ones(batch, 1)}

    args, kwargs = split_inputs(inputs(2))
    exported = torch.export.export(
        Keyword(),
        args,
        kwargs,
        dynamic_shapes={name: {0: torch.export.Dim.AUTO} for name in ("x", "plus", "minus")},
    )
    by_batch = RuntimeAnnotator(exported).annotate_grid(inputs, (2, 5), budget_s=0.01)
    assert {batch: sum(item.output_bytes for item in found) for batch, found in by_batch.items()} == {
        2: 3 * 2 * 4 * 4,
        5: 3 * 5 * 4 * 4,
    }


def test_end_to_end_runs_are_repeated_in_eval_mode_without_gradients() -> None:
    model = Keyword().train()
    runs = time_runs(model, (torch.ones(2, 4),), {"plus": torch.ones(1), "minus": torch.ones(1)}, 0.01)
    assert len(runs) >= LEAST_RUNS and all(spent > 0 for spent in runs)
    assert model.calls > len(runs)  # a run at least to warm up
    assert model.modes == {(False, False)}


def test_devices_follow_the_device_argument_and_then_the_inputs() -> None:
    class Made(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.zeros(4, device="cpu") + 1, x.relu()

    with torch.device("meta"):
        exported = export(Made(), (torch.ones(2, 4),))
    devices = DeviceAnnotator(exported).annotate()
    assert devices["x"] == "meta" and devices["relu"] == "meta"
    assert devices["zeros"] == "cpu" and devices["add"] == "cpu"


def test_percentiles_interpolate() -> None:
    ordered = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [percentile(ordered, share) for share in (0, 0.5, 0.95, 1)] == [1, 3, pytest.approx(4.8), 5]
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize("count", [5, 8, 20, 101, 200])
def test_median_interval_holds_ninety_percent_and_is_the_narrowest(count: int) -> None:
    first, last = median_ranks(count)

    def coverage(rank: int) -> float:
        return 1 - 2 * sum(comb(count, k) for k in range(rank + 1)) / 2**count

    assert first + last == count - 1
    assert coverage(first) >= 0.9
    assert coverage(first + 1) < 0.9


def test_few_runs_are_bounded_by_their_extremes_and_none_is_our_fault() -> None:
    found = summarise([3.0, 1.0, 2.0])
    assert (found.p50_ms, found.median_low_ms, found.median_high_ms, found.runs) == (2.0, 1.0, 3.0, 3)
    with pytest.raises(InternalFault):
        summarise([])
