"""The command writes parts, a fresh process runs them from the files alone, and what is not ours is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.partitioning.parts import assert_same, best_cut, graph_of, program_of, sample_program
from tests.support.paths import ROOT
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.graph.architecture import former_architecture_hash
from torchsplit_core.model_source import example_arguments
from torchsplit_core.stages import MANIFEST, export_stages, open_stages
from torchsplit_core.stages.bit_equal import same_bits
from torchsplit_core.tracing import trace
from torchsplit_core.values import InputFault, NodeProfile, Profile, ProfileRow

FRESH = """
import sys, torch
from torchsplit_core.stages import open_stages
args = torch.load(sys.argv[2], weights_only=True)
model = open_stages(sys.argv[1])
torch.save({batch: model(*one) for batch, one in args.items()}, sys.argv[3])
assert not any(name.split(".")[0] == "sample_models" for name in sys.modules)
"""


def profile_of(graph: Any, source: str) -> Profile:
    nodes = tuple(NodeProfile(op.id, 1 / len(graph.ops), op.output_bytes, 0) for op in graph.ops)
    row = ProfileRow("whole", "cpu", None, 2, 1, 200.0, 10.0, None, None, None, "measured")
    return Profile(source, graph.architecture_hash, {}, (row,), nodes)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> tuple[Path, Any, torch.nn.Module]:
    """Three parts of BERT as the command writes them."""
    folder = tmp_path_factory.mktemp("bert")
    client, model, program = sample_program("bert")
    write_file(profile_of(graph_of(program), "sample:bert"), folder / "bert.json")
    parts = folder / "parts"
    command = [
        "partition", "sample:bert", "--profile", str(folder / "bert.json"), "--stages", "3", "--time-limit",
        "1",
    ]  # fmt: skip
    assert main([*command, "--export", str(parts), "--candidate", "2", "-o", str(folder / "cuts.json")]) == 0
    return parts, client, model


def test_the_command_writes_the_candidate_asked_for_as_parts_that_trace(bert):
    parts, _, _ = bert
    _, manifest = read_file(parts / MANIFEST, expected="torchsplit.stages")
    _, cuts = read_file(parts.parent / "cuts.json", expected="torchsplit.partition")
    assert manifest.architecture_hash == cuts.architecture_hash and manifest.source == "sample:bert"
    assert len(manifest.stages) == len(cuts.candidates[1].stages) == 3 and manifest.verified_batches == (2, 3)
    assert sorted(entry.name for entry in parts.iterdir()) == [
        "stage0.pt2", "stage1.pt2", "stage2.pt2", MANIFEST,
    ]  # fmt: skip
    first = set(cuts.candidates[1].stages[0])
    assert {value.name for value in manifest.stages[0].outputs} <= first
    graph = trace(str(parts / "stage1.pt2"))
    inputs = [node for node in graph.nodes if node.kind == "input"]
    assert inputs and all(isinstance(node.shape[0], str) for node in inputs if node.shape)


@pytest.mark.repeated
def test_a_fresh_process_runs_the_files_alone_to_the_bit(bert, tmp_path):
    parts, client, model = bert
    inputs = {batch: example_arguments(client, batch)[0] for batch in (1, 4, 7)}
    torch.save(inputs, tmp_path / "inputs")
    command = [sys.executable, "-c", FRESH, str(parts), str(tmp_path / "inputs"), str(tmp_path / "results")]
    subprocess.run(command, check=True, cwd=ROOT)
    stored = torch.load(tmp_path / "results", weights_only=True)
    for batch, args in inputs.items():
        with torch.no_grad():
            assert_same(stored[batch], model(*args))


def copied(parts: Path, folder: Path) -> Path:
    for entry in parts.iterdir():
        (folder / entry.name).write_bytes(entry.read_bytes())
    return folder


def test_parts_of_another_hand_need_trust_and_changed_ones_are_never_loaded(bert, tmp_path):
    parts, client, model = bert
    args = example_arguments(client, 3)[0]
    folder = copied(parts, tmp_path)
    with torch.no_grad():
        assert_same(open_stages(folder)(*args), model(*args))
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["notes"].append("from elsewhere")
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputFault, match="was not written here and is not trusted"):
        open_stages(folder)
    with torch.no_grad():
        assert_same(open_stages(folder, trust=True)(*args), model(*args))
    part = folder / "stage1.pt2"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(InputFault, match=r"stage1\.pt2: has the SHA-256"):
        open_stages(folder, trust=True)
    part.unlink()
    with pytest.raises(InputFault, match=r"stage1\.pt2: cannot be read: no such file"):
        open_stages(folder, trust=True)
    with pytest.raises(InputFault, match=r"nowhere.*cannot be read: no such file"):
        open_stages(folder / "nowhere")


@pytest.mark.parametrize("name", ["../stage0.pt2", "/etc/passwd", "a/b.pt2", ".pt2"])
def test_a_manifest_names_no_file_outside_its_folder(bert, tmp_path, name):
    manifest = json.loads((bert[0] / MANIFEST).read_text())
    manifest["stages"][0]["file"] = name
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputFault, match=r"stages\[0\]\.file"):
        open_stages(tmp_path, trust=True)


def test_arguments_unlike_the_traced_ones_are_refused(bert):
    parts, client, _ = bert
    model = open_stages(parts)
    ids, mask, segments = example_arguments(client, 2)[0]
    for args, kwargs, told in (
        ((ids, mask), {}, "differ from the structure that was traced"),
        ((ids, mask, segments), {"more": 1}, "differ from the structure that was traced"),
        ((ids.double(), mask, segments), {}, "has dtype float64, not int64"),
        ((ids[:, :1], mask, segments), {}, "has shape"),
        ((ids, mask[:1], segments), {}, "has shape"),
        ((ids, mask, 3), {}, "not a tensor"),
    ):
        with pytest.raises(InputFault, match=told):
            model(*args, **kwargs)


CLIENT = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x, *, shift=None, scale=2.0):
        y = torch.relu(self.one(x)) * scale
        y = self.two(y) + shift
        return {"y": -y if x.shape[0] == 1 else y, "scale": scale}
class Client:
    batch_sizes = (1, 2)
    def get_model(self):
        return Model()
    def get_example_inputs(self, n):
        return (torch.ones(n, 4),), {"shift": torch.ones(n, 1), "scale": 2.0}
"""


def test_a_folder_with_other_files_is_refused(tmp_path):
    _, _, program = sample_program("diamond")
    graph = graph_of(program)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputFault, match=r"holds 'mine\.txt', which is no part"):
        export_stages(
            "sample:diamond", best_cut(graph, 2), tmp_path, architecture_hash=graph.architecture_hash
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.txt"]


def test_a_cut_of_the_version_before_says_to_measure_again(tmp_path):
    _, _, program = sample_program("diamond")
    graph = graph_of(program)
    with pytest.raises(InputFault, match="by an earlier version of TorchSplit"):
        export_stages(
            "sample:diamond", best_cut(graph, 2), tmp_path / "parts",
            architecture_hash=former_architecture_hash(graph),
        )  # fmt: skip


def test_a_model_of_the_users_and_a_pt2_need_trust_and_keep_their_keywords(bert, tmp_path):
    (tmp_path / "net.py").write_text(CLIENT)
    source = f"{tmp_path / 'net.py'}:Client"
    graph = graph_of(program_of(source, trust=True)[2])
    cut = best_cut(graph, 2)
    digest = graph.architecture_hash
    with pytest.raises(InputFault, match="trusted"):
        export_stages(source, cut, tmp_path / "parts", architecture_hash=digest)
    (tmp_path / "parts").mkdir()
    copied(bert[0], tmp_path / "parts")
    manifest = export_stages(source, cut, tmp_path / "parts", architecture_hash=digest, trust=True)
    # the earlier export is replaced, and nothing is left beside it
    assert sorted(entry.name for entry in (tmp_path / "parts").iterdir()) == [
        "stage0.pt2", "stage1.pt2", MANIFEST,
    ]  # fmt: skip
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name != "__pycache__") == [
        "net.py",
        "parts",
    ]
    assert len(manifest.stages) == 2 and manifest.verified_batches == (2, 3)
    model = open_stages(tmp_path / "parts")
    x, shift = torch.randn(5, 4), torch.randn(5, 1)
    result = model(x, scale=2.0, shift=shift)
    with pytest.raises(InputFault, match="have the size 1"):
        model(x[:1], scale=2.0, shift=shift[:1])
    assert list(result) == ["y", "scale"] and result["scale"] == 2.0 and result["y"].shape == (5, 4)
    with pytest.raises(InputFault, match=r"a constant argument: is 3\.0, but was 2\.0"):
        model(x, shift=shift, scale=3.0)
    # a part is a .pt2 itself, and its own parts come from the file as it is
    inner = str(tmp_path / "parts" / "stage0.pt2")
    part = trace(inner)
    with pytest.raises(InputFault, match=r"taking the weights out of a \.pt2 executes"):
        export_stages(inner, best_cut(part, 2), tmp_path / "inner", architecture_hash=part.architecture_hash)
    export_stages(
        inner, best_cut(part, 2), tmp_path / "inner", architecture_hash=part.architecture_hash, trust=True
    )
    values = {value.name: {"x": x, "shift": shift}.get(value.name) for value in manifest.stages[0].inputs}
    found = open_stages(tmp_path / "inner")(*values.values())
    expected = model.stages[0](values)
    assert all(same_bits(one, two) for one, two in zip(found, expected.values(), strict=True))


@pytest.mark.parametrize(("arguments", "told"), [
    (["{root}/examples/partition_request.json", "--export", "{out}"], "only a model has parts to write"),
    (["sample:diamond", "--profile", "{root}/examples/profile.json", "--candidate", "1"],
     "but nothing is exported"),
    (["sample:diamond", "--profile", "{root}/examples/profile.json", "--export", "{root}/examples"],
     "--export"),
])  # fmt: skip
def test_the_command_refuses_what_cannot_be_exported(arguments, told, tmp_path, capsys):
    filled = [text.format(root=ROOT, out=tmp_path / "out") for text in arguments]
    assert main(["partition", *filled]) == 2
    assert told in capsys.readouterr().err and not (tmp_path / "out").exists()
