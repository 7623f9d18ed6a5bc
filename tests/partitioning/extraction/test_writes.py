"""What a model writes in place: kept in one stage where that is right, refused by name where it is not."""

import json
import re

import pytest
import torch
from torch import nn

from tests.support.partitioning.parts import ROW, assert_same, cut_after, exported, graph_of, parts_of
from tests.support.partitioning.writing_models import OTHER, Early, Residual, X, counter
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, read_text, write_file
from torchsplit_core.model_source import load_client
from torchsplit_core.partitioning.extraction.stage_drafts import divide
from torchsplit_core.stages import MANIFEST
from torchsplit_core.stages.export_child import export_in_child, first_divisible_cut
from torchsplit_core.stages.staged_model import StagedModel
from torchsplit_core.values import InputFault, NodeProfile, Profile, ignore_progress


@pytest.mark.parametrize("last", ["relu_", "linear_1", "relu__1", "linear"])
def test_writes_within_a_stage_and_reads_of_what_they_left_are_exact(last, tmp_path):
    model = Residual().eval()
    program = exported(model, X, other=(OTHER,))
    parts = parts_of(program, cut_after(program, last), tmp_path, X)
    for batch in (1, 5):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            assert_same(parts(x), model(x))


def test_two_stages_that_write_one_memory_are_refused():
    program = exported(Residual(), X, other=(OTHER,))
    with pytest.raises(
        InputFault, match=r"operation relu__1.*aten.relu_.*add_, in another stage, writes the same"
    ) as caught:
        divide(program, cut_after(program, "add_"))
    assert "out of place" in caught.value.remedy


def test_the_first_cut_that_holds_is_taken_and_those_before_it_named():
    program = exported(Residual(), X, other=(OTHER,))
    bad, good = cut_after(program, "add_"), cut_after(program, "linear_1")
    number, refused = first_divisible_cut(program, [bad, good, bad])
    assert number == 1 and len(refused) == 1 and refused[0].startswith("operation relu__1")
    assert first_divisible_cut(program, [good, bad]) == (0, [])
    with pytest.raises(InputFault, match=r"1: operation relu__1.*2: operation relu__1.*more candidates"):
        first_divisible_cut(program, [bad, bad])
    with pytest.raises(InputFault, match=r"^operation relu__1"):
        first_divisible_cut(program, [bad])


UNTOLD = """
import torch
from torch import nn


@torch.library.custom_op("torchsplit_tests::double", mutates_args=("x",))
def double(x: torch.Tensor) -> None:
    x.mul_(2)


@double.register_fake
def _(x):
    return None


class Untold(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = torch.relu_(self.one(x))
        z = self.two(y)
        z += y
        double(z)
        return z + 1


class Client:
    batch_sizes = (1, 2)

    def get_model(self):
        return Untold()

    def get_example_inputs(self, batch):
        return (torch.ones(batch, 4),)
"""
"""An operation that writes in place, which its name does not tell."""
TIMES = (0.1, 0.1, 0.15, 0.15, 0.4, 0.1)
"""Of the operations in order: the best cut is before the one whose name does not tell that it writes."""


def test_the_command_goes_on_to_a_candidate_that_can_be_cut(tmp_path, capsys):
    (tmp_path / "untold.py").write_text(UNTOLD)
    source, parts = f"{tmp_path / 'untold.py'}:Client", tmp_path / "parts"
    model = load_client(source, trust=True).get_model()
    graph = graph_of(exported(model, X, other=(OTHER,)))
    nodes = tuple(NodeProfile(op.id, TIMES[i], op.output_bytes, 0) for i, op in enumerate(graph.ops))
    write_file(Profile(source, graph.architecture_hash, {}, (ROW,), nodes), tmp_path / "profile.json")
    command = [
        "partition", source, "--trust", "--profile", str(tmp_path / "profile.json"), "--time-limit", "2",
    ]  # fmt: skip
    assert main([*command, "--export", str(parts), "-o", str(tmp_path / "cuts.json")]) == 0
    printed = capsys.readouterr().err
    assert "candidate 1 cannot be written: operation double" in printed
    (number,) = map(int, re.findall(r"2 parts of candidate ([2-5]), equal to the model", printed))
    _, cuts = read_file(tmp_path / "cuts.json")
    _, manifest = read_file(parts / MANIFEST)
    assert cuts.candidates[0].stages[0][-1] == "add_"
    assert {value.name for value in manifest.stages[0].outputs} <= set(cuts.candidates[number - 1].stages[0])


@pytest.mark.parametrize(("stages", "rule"), [
    ([["x", "mul", "view", "add", "sum_1"], ["add_", "exp", "sum_2", "sum_3"]],
     "several values of this memory enter"),
    ([["x", "mul", "view", "add", "add_"], ["exp", "sum_1", "sum_2", "sum_3"]], ""),
    ([["x", "mul", "view"], ["add_", "exp", "sum_2"], ["add", "sum_1", "sum_3"]],
     "reads what was there before"),
    ([["x", "mul", "view", "sum_3"], ["add", "add_", "exp", "sum_1", "sum_2"]], "reads what this writes"),
    ([["x", "mul", "view", "add"], ["add_", "exp"], ["sum_1", "sum_2", "sum_3"]], "from before the write"),
])  # fmt: skip
def test_reads_around_a_write(stages, rule, tmp_path):
    model = Early()
    program = exported(model, X, other=(OTHER,))
    names = {node.name for node in program.graph.nodes if node.op != "output"}
    stages = [[name for name in stage if name in names] for stage in stages]
    placed = {name for stage in stages for name in stage}
    stages[-1] += sorted(names - placed)
    if rule:
        with pytest.raises(InputFault, match=rule) as caught:
            divide(program, stages)
        assert "add_" in str(caught.value)
    else:
        assert_same(parts_of(program, stages, tmp_path, X)(OTHER), model(OTHER))


def test_state_stays_in_its_stage_counts_on_and_starts_as_it_was(tmp_path):
    source, model = counter(tmp_path)
    graph = graph_of(exported(model, X.clone(), other=(OTHER,)))
    request = {"source": source, "trust": True, "architecture_hash": graph.architecture_hash}
    for last in ("linear_1", "add_"):
        stages = cut_after(exported(model, X.clone(), other=(OTHER,)), last)
        folder = tmp_path / last
        folder.mkdir()
        told = export_in_child({**request, "cuts": [stages], "directory": str(folder)}, ignore_progress)
        assert told["manifest"]["verified_batches"] == [2, 3]
        _, manifest = read_text(json.dumps(told["manifest"]))
        parts, fresh = StagedModel(folder, manifest), load_client(source, trust=True).get_model()
        with torch.no_grad():
            for _ in range(3):
                assert_same(parts(OTHER.clone()), fresh(OTHER.clone()))
        assert float(fresh.runs) == 3


def test_state_read_in_two_stages_is_refused_by_name(tmp_path):
    program = exported(counter(tmp_path)[1], X.clone(), other=(OTHER,))
    with pytest.raises(InputFault, match=r"add_.*and add, in another stage, reads the weight that it writes"):
        divide(program, cut_after(program, "add"))


class Inside(nn.Module):
    """A branch that writes only what it made itself, in bodies of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def doubled(y: torch.Tensor) -> torch.Tensor:
            return (y * 2).relu_()

        def kept(y: torch.Tensor) -> torch.Tensor:
            return y + 1

        y = torch.cond(x.sum() > 0, doubled, kept, (x,))
        return y.exp() + x


def test_a_branch_may_write_its_own_values(tmp_path):
    model = Inside()
    program = exported(model, X, other=(OTHER,))
    parts = parts_of(program, cut_after(program, "gt"), tmp_path, X)
    for x in (OTHER.abs(), -OTHER.abs()):
        assert_same(parts(x), model(x))


def test_a_decomposed_program_that_gives_its_state_back_is_refused(tmp_path):
    program = exported(counter(tmp_path)[1], X.clone(), other=(OTHER,)).run_decompositions()
    with pytest.raises(InputFault, match="without run_decompositions"):
        divide(program, [["x"], []])
