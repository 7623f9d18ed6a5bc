"""The roofline against the measured library, its arithmetic by hand, and what it refuses to guess."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import sample_models
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.hardware import catalogue, gpu_type, peaks
from torchsplit_core.profiling.flops import NodeCost
from torchsplit_core.profiling.library import library_profile
from torchsplit_core.profiling.roofline import (
    CONVOLUTION_INTERVAL,
    FITTED_CONSTANTS,
    MATMUL_INTERVAL,
    OTHER_GPU_WIDENING,
    batch_time_s,
    estimate_rows,
    estimated_nodes,
    interval,
    node_time_s,
    slice_rates,
)
from torchsplit_core.values import GraphNode, InputFault

A100 = "A100-80GB"


def rates(profile: str, gpu: str = A100) -> Any:
    return slice_rates(peaks(gpu), gpu_type(gpu), gpu_type(gpu).profile(profile))


@pytest.fixture(scope="module")
def resnet50() -> TorchGraph:
    from tests.support.profiling.export import export, to_graph

    client = sample_models.load("resnet50", "large")
    with torch.device("meta"):
        model = client.build()
    return to_graph(export(model, (torch.zeros(2, 3, 224, 224, device="meta"),)))


def test_resnet50_lies_within_its_interval_of_what_was_measured(resnet50):
    measured = {
        (row.profile, row.batch_size): row for row in library_profile("resnet50").rows if row.processes == 1
    }
    batches = sorted({batch for _, batch in measured})
    rows = [
        row for row in estimate_rows(resnet50, (A100,), batches) if (row.profile, row.batch_size) in measured
    ]
    assert len(rows) >= 35
    inside, errors = 0, []
    for row in rows:
        found = measured[row.profile, row.batch_size].throughput_rps
        assert row.low_rps is not None and row.high_rps is not None
        inside += row.low_rps <= found <= row.high_rps
        errors.append(abs(row.throughput_rps / found - 1))
    assert inside >= 0.85 * len(rows)
    assert sorted(errors)[len(errors) // 2] < 0.10


def test_rows_are_complete_and_larger_slices_are_not_slower(resnet50):
    rows = estimate_rows(resnet50, (A100, "H100-SXM5-80GB"), (1, 32), stage="first")
    assert {row.gpu_type for row in rows} == {A100, "H100-SXM5-80GB"}
    for row in rows:
        assert (row.stage, row.basis, row.processes) == ("first", "estimated", 1)
        assert row.low_rps is not None and row.high_rps is not None and row.memory_gib is not None
        assert 0 < row.low_rps < row.throughput_rps < row.high_rps
        assert row.latency_ms > 1000 * row.batch_size / row.throughput_rps
        assert 0 < row.memory_gib <= (gpu_type(row.gpu_type).profile(row.profile or "").memory_gib or 0)
    at = {(row.gpu_type, row.profile, row.batch_size): row.throughput_rps for row in rows}
    assert (
        at[A100, "1g.10gb", 32] < at[A100, "2g.20gb", 32] < at[A100, "4g.40gb", 32] < at[A100, "7g.80gb", 32]
    )
    assert at[A100, "1g.10gb", 32] < at[A100, "1g.20gb", 32]  # twice the memory bandwidth
    assert at[A100, "2g.20gb", 1] == at[A100, "7g.80gb", 1]  # one image: the processor cannot issue faster


def test_a_whole_gpu_and_one_without_mig_are_one_slice_of_all_they_have(resnet50):
    rows = estimate_rows(resnet50, (A100, "L4-24GB", "T4-16GB"), (32,))
    at = {(row.gpu_type, row.profile): row.throughput_rps for row in rows}
    assert at[A100, None] > at[A100, "7g.80gb"]  # 108 SMs, of which MIG reaches 98
    assert {profile for kind, profile in at if kind != A100} == {None}
    assert at["T4-16GB", None] < at["L4-24GB", None] < at[A100, None]  # the T4 has no TF32: FP32 it is


def test_batches_past_the_memory_of_a_slice_are_left_out(resnet50):
    rows = estimate_rows(resnet50, (A100,), (16, 2048))
    fitting = {row.profile for row in rows if row.batch_size == 2048}
    assert "1g.10gb" not in fitting and "7g.80gb" in fitting
    assert "1g.10gb" in {row.profile for row in rows if row.batch_size == 16}


def test_time_of_one_operation_by_hand():
    one = rates("1g.10gb")
    assert one.fp32 == pytest.approx(19.5e12 * 14 / 108)
    assert one.bytes_per_s == pytest.approx(2039e9 / 8)
    work = NodeCost("a", 2e9, 1e6, 1e6, 1, 2e9, "convolution", "float32")
    kernel = FITTED_CONSTANTS.device_s
    tf32 = 2e9 / (156e12 * 14 / 108 * FITTED_CONSTANTS.convolution)
    assert node_time_s(work, one) == pytest.approx(tf32 + kernel)
    product = replace(work, unit="matmul")
    assert node_time_s(product, one) == pytest.approx(
        2e9 / (19.5e12 * 14 / 108 * FITTED_CONSTANTS.matmul) + kernel
    )
    half = replace(product, dtype="bfloat16")
    assert node_time_s(half, one) == pytest.approx(
        2e9 / (312e12 * 14 / 108 * FITTED_CONSTANTS.matmul) + kernel
    )
    moved = NodeCost("b", 1e3, 4e8, 4e8, 1)
    assert node_time_s(moved, one) == pytest.approx(8e8 / (2039e9 / 8 * FITTED_CONSTANTS.memory) + kernel)
    assert node_time_s(NodeCost("c", 0, 0, 0, 0, unit="none"), one) == 0


def test_processor_or_gpu_whichever_is_slower():
    small = tuple(NodeCost(str(index), 10, 10, 10, 1) for index in range(100))
    assert batch_time_s(small, rates("7g.80gb")) == pytest.approx(100 * FITTED_CONSTANTS.host_s)
    large = (NodeCost("x", 1, 1e12, 0, 1),)
    spent = batch_time_s(large, rates("7g.80gb"))
    assert spent == pytest.approx(1e12 / (2039e9 * FITTED_CONSTANTS.memory), rel=1e-3)


def test_intervals_are_wider_for_products_and_for_gpus_never_measured():
    convolution = [NodeCost("a", 10, 0, 0, 1, 10, "convolution"), NodeCost("b", 4, 0, 0, 1, 4, "matmul")]
    product = [NodeCost("a", 10, 0, 0, 1, 10, "matmul")]
    assert interval(convolution, A100) == CONVOLUTION_INTERVAL
    assert interval(product, A100) == MATMUL_INTERVAL
    low, high = CONVOLUTION_INTERVAL
    assert interval(convolution, "H200-141GB") == (low / OTHER_GPU_WIDENING, high * OTHER_GPU_WIDENING)


def test_a_peak_that_is_not_sourced_leaves_rows_out_with_a_warning(resnet50, make_graph):
    ada = "L20-48GB"
    assert peaks(ada).tf32_tflops is None
    with pytest.warns(UserWarning, match=r"^L20-48GB: no estimate for whole GPU: .* is not sourced\.$"):
        assert estimate_rows(resnet50, (ada,), (1,)) == ()
    products = make_graph(nn.Linear(64, 64), (torch.randn(2, 64),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert estimate_rows(products, (ada,), (1,))


def test_of_types_that_nobody_named_nothing_is_said(make_graph):
    graph = make_graph(nn.Linear(64, 64), (torch.randn(2, 64),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = estimate_rows(graph, ("GB200-186GB", "B300-270GB"), (1,), warn=False)
    assert {(row.gpu_type, row.profile) for row in rows} >= {("B300-270GB", None), ("GB200-186GB", "1g.23gb")}
    assert "3g.93gb" not in {row.profile for row in rows}


def test_every_gpu_of_the_catalogue_has_rows_or_a_warning(make_graph):
    graph = make_graph(nn.Linear(64, 64), (torch.randn(2, 64),))
    for name in catalogue():
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            rows = estimate_rows(graph, (name,), (1, 8))
        assert rows or heard, name
        assert all(row.throughput_rps > 0 for row in rows)


def test_shares_of_operations_add_up_and_follow_the_work(resnet50):
    nodes = estimated_nodes(resnet50)
    assert [node.id for node in nodes] == [node.id for node in resnet50.ops]
    assert sum(node.time_share for node in nodes) == pytest.approx(1.0)
    shares = {node.id: node.time_share for node in nodes}
    assert shares["conv2d"] > shares["mean"] > 0  # the stem moves a hundred times the bytes


@pytest.mark.parametrize(("gpus", "batches"), [(("B300",), (1,)), ((A100,), (0,))])
def test_unknown_gpu_and_empty_batch_are_refused(gpus, batches):
    graph = TorchGraph((GraphNode("x", "input", shape=("s0",), dtype="float32"),))
    with pytest.raises(InputFault):
        estimate_rows(graph, gpus, batches)
