"""Extraction: every part of every cut computes to the bit what the model does, and holds only what it needs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.support.partitioning.parts import (
    SAMPLES,
    assert_same,
    best_cut,
    cut_after,
    drafts,
    exported,
    graph_of,
    parts_of,
    run_unwritten,
    sample_program,
)
from tests.support.seeds import repeated
from torchsplit_core.model_source import example_arguments
from torchsplit_core.partitioning.extraction.stage_drafts import divide
from torchsplit_core.stages.export_child import write_stages
from torchsplit_core.stages.staged_model import StagedModel
from torchsplit_core.values import InputFault


@repeated("name", SAMPLES, kept=1)
def test_parts_of_every_sample_equal_the_model_to_the_bit(name, tmp_path):
    """k = 2, 3, 4, those of 3 from files (`benchmarks/stage_execution.py` takes all from files)."""
    client, model, program = sample_program(name)
    graph = graph_of(program)
    cuts = {k: best_cut(graph, k) for k in (2, 3, 4)}
    assert [len(cut.stages) for cut in cuts.values()] == [2, 3, 4]
    unwritten = [run_unwritten(program, cuts[k].stages) for k in (2, 4)]
    args, kwargs = example_arguments(client, 2)
    written = parts_of(program, cuts[3].stages, tmp_path, *args, **kwargs)
    assert len(written.stages) == 3 and written.manifest.verified_batches == (2,)
    for batch in (1, 3, 5):
        args, _ = example_arguments(client, batch)
        with torch.no_grad():
            expected = model(*args)
            assert_same(written(*args), expected)
            for run in unwritten:
                assert_same(run(*args), pytree.tree_leaves(expected))
    held = sum(part.weight_bytes for part in written.manifest.stages)
    whole = sum(one.nbytes for one in (*program.state_dict.values(), *program.constants.values()))
    assert held < whole + max(part.weight_bytes for part in written.manifest.stages)


class Tied(nn.Module):
    """The embedding's weights are the head's too; a table of constants is read at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.linspace(1, 2, 8))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        table = self.scale * 2
        x = self.middle(self.words(ids) * table)
        return self.head(torch.relu(x) + table)


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def test_a_tied_weight_is_in_both_stages_that_read_it_and_others_in_one(tmp_path):
    model = Tied()
    program = exported(model, IDS, other=(IDS[[0, 1, 0]],))
    first, second = drafts(program, "linear")
    assert {"p_middle_weight", "p_middle_bias"} <= set(first.weights) and len(second.weights) == 2
    parts = parts_of(program, cut_after(program, "linear"), tmp_path, IDS)
    ids = torch.randint(20, (5, 3))
    with torch.no_grad():
        assert_same(parts(ids), model(ids))
    assert [part.weight_bytes for part in parts.manifest.stages] == [20 * 32 + 9 * 32 + 32, 20 * 32 + 32]


def test_what_neither_inputs_nor_parameters_determine_is_made_again_not_shipped():
    first, second = drafts(exported(Tied(), IDS, other=(IDS[[0, 1, 0]],)), "linear")
    assert "mul" in first.operations and "mul" in second.operations
    assert first.outputs == second.inputs == ("linear",)


class Sizes(nn.Module):
    """A size of the input is used far behind it: where the tensor at hand has it, and where none has."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        n = x.shape[0]
        h = self.one(x)
        total = self.two(h).sum(dim=0)
        return h.reshape(n * 2, 2), total.expand(n, 4) * n, n


def test_a_size_is_read_off_a_tensor_at_hand_or_shipped_as_a_number(tmp_path):
    model, x = Sizes().eval(), torch.randn(2, 4)
    program = exported(model, x, other=(torch.randn(3, 4),))
    stages = cut_after(program, "linear", "sum_1")
    middle = divide(program, stages).stages[1]
    last = divide(program, stages).stages[2]
    assert middle.sizes == () and [size[1:] for size in last.sizes] == [("linear", 0)]
    # behind the sum alone no tensor has the size
    behind = [name for name in stages[2] if name in ("expand", "mul_1")]
    alone = [[name for stage in stages for name in stage if name not in behind], behind]
    for cut in (stages, alone):
        parts = parts_of(program, cut, tmp_path / str(len(cut)), x)
        for batch in (1, 3, 7):
            x = torch.randn(batch, 4)
            with torch.no_grad():
                assert_same(parts(x), model(x))
    shipped = {value.name: value.kind for value in parts.manifest.stages[1].inputs}
    assert shipped == {last.sizes[0][0]: "int", "sum_1": "tensor"}


class Skips(nn.Module):
    """Values that pass stages by, a chunk, an assertion, an unused result, a result that is an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, object]:
        torch._assert(x.dim() == 2, "rows")
        early, late = self.layers[0](x).chunk(2, dim=1)
        x.exp()
        y = torch.relu(self.layers[1](x))
        z = self.layers[2](y) + torch.cat([late, early], 1)
        return {"y": y, "all": (self.layers[3](z) + x, None, 7), "x": x, "y again": y}


def test_values_skip_stages_and_results_keep_their_structure(tmp_path):
    model, x = Skips().eval(), torch.randn(2, 6)
    program = exported(model, x, other=(torch.randn(3, 6),))
    names = [node.name for node in program.graph.nodes if node.op == "call_function"]
    assert "exp" in names
    stages = cut_after(program, "chunk", "relu", "linear_2")
    drafted = divide(program, stages).stages
    assert drafted[0].outputs == ("getitem", "getitem_1") and "exp" not in drafted[1].operations
    assert drafted[3].inputs == ("x", "getitem", "getitem_1", "linear_2")
    parts = parts_of(program, stages, tmp_path, x)
    for batch in (1, 4):
        x = torch.randn(batch, 6)
        with torch.no_grad():
            assert_same(parts(x), model(x))
    links = {(link.source, link.target): link.values for link in parts.manifest.links}
    assert links["stage0", "stage3"] == ("getitem", "getitem_1") and links[None, "stage3"] == ("x",)
    assert links[None, None] == ("x",) and links["stage1", None] == ("relu",)
    assert parts.manifest.cut_bytes == (2 * 6 * 4, 2 * 6 * 4, 2 * 6 * 4)


def test_cuts_of_another_graph_and_cuts_that_run_back_are_refused():
    program = exported(Skips(), torch.randn(2, 6), other=(torch.randn(3, 6),))
    first, second = cut_after(program, "relu")
    with pytest.raises(InputFault, match="which the later stage 2 computes"):
        divide(program, [second, first])
    with pytest.raises(InputFault, match="which is no operation or input of the model"):
        divide(program, [[*first, "strange"], second])
    with pytest.raises(InputFault, match="cut: lacks the operation"):
        divide(program, [first, second[:-1]])
    with pytest.raises(InputFault, match="but this model"):
        write_stages(program, [first, second], {2: ((torch.randn(2, 6),), {})}, Path(), "0" * 64)


def test_a_stage_of_nothing_but_unused_results_is_left_out_and_said():
    program = exported(Skips(), torch.randn(2, 6), other=(torch.randn(3, 6),))
    rest = [[name for name in stage if name != "exp"] for stage in cut_after(program, "relu")]
    division = divide(program, [rest[0], ["exp"], rest[1]])
    assert len(division.stages) == 2 and "Stage 2 of the cut" in division.notes[0]


class Named(nn.Module):
    """Modules under names with quotes, a backslash and a line break."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({name: nn.Linear(4, 4) for name in ('a"b', "a'b", "a\\b", "a\nb", "a_b")})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = torch.relu(block(x))
        return x


def test_names_of_modules_may_have_quotes_and_backslashes(tmp_path):
    model, x = Named(), torch.randn(2, 4)
    program = exported(model, x, other=(torch.randn(3, 4),))
    parts = parts_of(program, cut_after(program, "relu"), tmp_path, x)
    with torch.no_grad():
        assert_same(parts(x), model(x))


class Noise(nn.Module):
    """Dropout that is off and attention without it draw nothing; rand does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x, 0.5, training=False)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.relu(x) + torch.rand(4)


def test_what_draws_random_numbers_is_said_and_not_compared(tmp_path):
    x = torch.randn(2, 3, 4)
    program = exported(Noise(), x, other=(torch.randn(3, 3, 4),))
    parts = parts_of(program, cut_after(program, "relu"), tmp_path, x)
    assert divide(program, cut_after(program, "relu")).random == ("rand",)
    assert parts.manifest.verified_batches == () and "rand (aten.rand" in parts.manifest.notes[0]


class Branch(nn.Module):
    """What `alone` gives where the batch is 1."""

    def __init__(self, alone: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear, self.alone = nn.Linear(4, 4), alone
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        y = torch.relu(self.linear(x) * self.calls) + 1
        return self.alone(y) if x.shape[0] == 1 else y


def fails(y: torch.Tensor) -> torch.Tensor:
    raise ValueError("one row alone")


@pytest.mark.parametrize(("alone", "holds"), [
    (lambda y: y * 100, False),
    (lambda y: y[:, :2], False),
    (lambda y: y, True),
    (lambda y: y.squeeze(0), True),
    (fails, True),
])  # fmt: skip
def test_a_graph_that_is_not_the_model_at_batch_1_refuses_it(tmp_path, alone, holds):
    model, x = Branch(alone), torch.randn(3, 4)
    program = exported(model, x[:2], other=(x,))
    model.calls.zero_()
    digest, stages = graph_of(program).architecture_hash, cut_after(program, "relu")
    examples = {2: ((x[:2],), {}), 3: ((x,), {})}
    manifest = write_stages(program, stages, examples, tmp_path, digest, alone=(model, ((x[:1],), {})))
    assert [note.startswith("At batch 1 the graph") for note in manifest.notes] == [True] * (not holds)
    assert [(limit.least, limit.most) for limit in manifest.sizes] == [(2, None)] * (not holds)
    parts = StagedModel(tmp_path, manifest)
    model.calls.zero_()
    assert torch.equal(parts(x), model(x))  # the comparison leaves no trace in the parts' state
    if holds:
        assert parts(x[:1]).shape == (1, 4)
    else:
        with pytest.raises(
            InputFault, match=r"have the size 1 \(s\d+\), and the parts are the model for 2 and more"
        ):
            parts(x[:1])


def test_parts_refuse_batches_that_the_graph_does_not_hold_for(tmp_path):
    class Limited(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).relu() * (100 if x.shape[0] >= 8 else 1)

    program = exported(Limited(), torch.ones(2, 4), other=(torch.ones(3, 4),))
    parts = parts_of(program, cut_after(program, "relu"), tmp_path, torch.ones(2, 4))
    assert torch.equal(parts(torch.ones(7, 4)), Limited()(torch.ones(7, 4)))
    with pytest.raises(InputFault, match=r"have the size 8 \(s\d+\), and the parts are the model for 1 to 7"):
        parts(torch.ones(8, 4))


class Found(nn.Module):
    """A size that only the data decide."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x[x > 0]
        return (kept * 2).exp() + 1


def test_sizes_that_the_data_decide_cross_a_cut(tmp_path):
    model, x = Found(), torch.randn(2, 5)
    program = exported(model, x, other=(torch.randn(3, 5),))
    parts = parts_of(program, cut_after(program, "mul"), tmp_path, x)
    for batch in (1, 4):
        x = torch.randn(batch, 5)
        assert_same(parts(x), model(x))
