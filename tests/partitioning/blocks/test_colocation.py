"""Memory that is written in place: what concerns it is one group, and every cut that is offered can be made."""

import random

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from tests.support.partitioning.parts import ROW, exported, graph_of
from tests.support.partitioning.writing_models import OTHER, Early, Residual, X, counter
from torchsplit_core.graph import TorchGraph, prepare
from torchsplit_core.partitioning import PartitionProvider
from torchsplit_core.partitioning.blocks.colocation import colocation_groups, writes_in_place
from torchsplit_core.partitioning.extraction.stage_drafts import divide
from torchsplit_core.values import GraphNode, NodeProfile, PartitionCandidate, Profile


def sets_of(graph: TorchGraph) -> set[frozenset[str]]:
    found = {}
    for name, group in colocation_groups(graph, prepare(graph)).items():
        found.setdefault(group, set()).add(name)
    return {frozenset(names) for names in found.values()}


def test_activations_in_place_stay_with_what_they_overwrite():
    graph = graph_of(exported(Residual(), X, other=(OTHER,)))
    # The shortcut reads the first activation after its last write, so a cut between the two is left free.
    assert sets_of(graph) == {frozenset({"linear", "relu_"}), frozenset({"linear_1", "add_", "relu__1"})}


def test_readers_and_views_up_to_the_last_write_stay_together():
    graph = graph_of(exported(Early(), X, other=(OTHER,)))
    (found,) = sets_of(graph)
    assert {"mul", "view", "add", "add_"} <= found and not found & {"exp", "sum_1", "sum_2", "sum_3"}


def test_state_that_is_written_holds_all_its_readers_and_an_input_that_is_written_too(tmp_path):
    graph = graph_of(exported(counter(tmp_path)[1], X.clone(), other=(OTHER,)))
    found = sets_of(graph)
    assert frozenset({"x", "mul_"}) in found
    assert any({"add", "add_", "mul"} <= names and "linear" not in names for names in found)


def test_a_graph_without_writes_has_the_groups_of_its_units_alone():
    graph = graph_of(exported(nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.ReLU()), X, other=(OTHER,)))
    assert sets_of(graph) == {
        frozenset(unit.members) for unit in prepare(graph).units if len(unit.members) > 1
    }


@pytest.mark.parametrize(("target", "writes"), [
    ("aten.add_.Tensor", True), ("aten.__iand__.Tensor", True), ("aten.__and__.Tensor", False),
    ("aten._index_put_impl_.default", True), ("aten.add.Tensor", False), ("_operator.getitem", False),
])  # fmt: skip
def test_names_that_write(target, writes):
    assert writes_in_place(GraphNode("n", "op", target=target, inputs=("x",))) is writes


class Deep(nn.Module):
    """Blocks as convolutional networks have them, with a shortcut and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.second = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        for one, two in zip(self.first, self.second, strict=True):
            y = two(torch.relu_(one(x)))
            y += x
            x = torch.relu_(y)
        return x


class Random(nn.Module):
    """Operations drawn at random, many of them in place: on inputs, on views, on a buffer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        draw = random.Random(self.seed)
        made = [x, z, x * 1.0]
        for _ in range(draw.randint(5, 12)):
            a, b = draw.choice(made), draw.choice(made)
            kind = draw.choice(("exp", "add", "add_", "relu_", "view", "slice", "count", "state", "linear"))
            if kind == "count":
                self.state.add_(1)
                continue
            made.append(
                {
                    "exp": lambda a=a: a.exp(), "add": lambda a=a, b=b: a + b,
                    "add_": lambda a=a, b=b: a.add_(b), "relu_": lambda a=a: a.relu_(),
                    "view": lambda a=a: a.view(-1, 2).view(-1, 4), "slice": lambda a=a: a[:, :] * 2,
                    "state": lambda a=a: a + self.state, "linear": lambda a=a: self.linear(a),
                }[kind]()
            )  # fmt: skip
        return made[-1] + draw.choice(made), draw.choice(made)


@pytest.mark.parametrize("seed", range(16))
def test_every_candidate_of_random_writes_can_be_cut(seed):
    inputs = [tuple(torch.randn(batch, 4) for _ in range(2)) for batch in (2, 3)]
    program = exported(Random(seed), *inputs[0], other=inputs[1])
    found = candidates_of(program, 3)
    assert found and all(1 <= len(divide(program, one.stages).stages) <= len(one.stages) for one in found)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_every_candidate_of_a_model_that_writes_in_place_can_be_cut(stages, tmp_path):
    models = (Residual(), Early(), counter(tmp_path)[1], Deep())
    for model in models:
        program = exported(model, X.clone(), other=(OTHER.clone(),))
        found = candidates_of(program, stages)
        assert any(len(candidate.stages) > 1 for candidate in found)
        for candidate in found:
            divide(program, candidate.stages)


def candidates_of(program: ExportedProgram, stages: int) -> tuple[PartitionCandidate, ...]:
    """All that a search offers, every operation as long as any other."""
    graph = graph_of(program)
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    provider = PartitionProvider(graph, Profile("m", graph.architecture_hash, {}, (ROW,), nodes))
    request = provider.request(stages, 20, 1e-6, time_limit_s=2.0)
    return (*provider.solve(request).candidates, *provider.region_candidates(request))
