"""A traced mixture of experts is estimated as training runs it: each expert on its rows, as torch counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import sample_models
from torchsplit_core.graph.serialization import graph_from_dict
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.flops import node_costs
from torchsplit_core.strategy.graph_model.calibration import device_factors
from torchsplit_core.strategy.graph_model.costs import GraphCosts
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.routed_experts import as_trained
from torchsplit_core.strategy.search.machines import read_fleet
from torchsplit_core.tracing.export import export_in_child
from torchsplit_core.values import Profile, ProfileRow, ignore_progress
from torchsplit_core.values.strategy.request import StrategyNodes
from torchsplit_core.values.training import TrainingJob

NAMES = ("layers.0.feed_forward.experts", "layers.1.feed_forward.experts")
ROWS, EXPERTS, WIDTH = 48, 4, 32
BATCH = 2


@pytest.fixture(scope="module")
def served() -> TorchGraph:
    """The traced sample, whose experts compute all rows."""
    graph = graph_from_dict(export_in_child({"source": "sample:moe", "trust": False}, ignore_progress))
    assert graph.experts == NAMES
    return graph


@pytest.fixture(scope="module")
def module() -> nn.Module:
    """The experts of a layer."""
    return sample_models.load("moe", "small").get_model().get_submodule(NAMES[0]).train()


def _even() -> tuple[Tensor, Tensor]:
    """Rows of a batch, as many for each expert."""
    return torch.randn(ROWS, WIDTH), torch.full((EXPERTS,), ROWS // EXPERTS)


def _inside(graph: TorchGraph) -> set[str]:
    return {node.id for node in graph.nodes if node.module == NAMES[0]}


def test_experts_do_the_operations_that_torch_counts_in_training(
    served: TorchGraph, module: nn.Module
) -> None:
    with FlopCounterMode(display=False) as counter:
        module(*_even())
    trained = as_trained(served)
    operations = {
        name: sum(cost.matrix_flops for cost in node_costs(graph, BATCH) if cost.id in _inside(graph))
        for name, graph in (("trained", trained), ("served", served))
    }
    assert operations["trained"] == counter.get_total_flops()
    assert operations["served"] == EXPERTS * operations["trained"]


def test_experts_save_what_torch_saves_in_training(served: TorchGraph, module: nn.Module) -> None:
    saved: dict[int, int] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    rows, counts = _even()
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(rows.requires_grad_(), counts)
    trained = as_trained(served)
    estimated: dict[str, float] = {}
    for cost in GraphCosts(trained, BATCH, "whole").operations:
        if cost.id in _inside(trained):
            estimated |= cost.saved
    assert sum(estimated.values()) == sum(saved.values())


def test_a_graph_without_experts_stays_as_it_is(served: TorchGraph) -> None:
    plain = replace(served, experts=())
    assert as_trained(plain) is plain and GraphCostModel(served, served=True).graph is served
    assert as_trained(replace(served, experts=("layers.0.attention",))).nodes == served.nodes


def test_a_profile_calibrates_by_the_model_that_is_served(served: TorchGraph) -> None:
    (machine,) = read_fleet((StrategyNodes(1, 1, "CPU-2c"),), "fp32")
    row = ProfileRow("whole", "CPU", "2c", BATCH, 1, 100.0, 20.0, None, None, None, "measured")
    profile = Profile("sample:moe", served.architecture_hash, rows=(row,))
    job = TrainingJob(BATCH, "fp32")
    ((_, dense),) = device_factors(GraphCostModel(served, served=True), machine, job, profile)
    ((_, routed),) = device_factors(GraphCostModel(served), machine, job, profile)
    assert dense < routed
