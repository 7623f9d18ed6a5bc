"""Stages of cut models in workers: the model's bits, isolated like a model's code, and never from a changed file."""

import hashlib
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.partitioning.parts import best_cut, graph_of, one_thread, sample_program
from tests.support.serving.stages import run_stage
from torchsplit_core.files import read_file, write_file
from torchsplit_core.isolation import available_levels
from torchsplit_core.model_source import example_arguments
from torchsplit_core.serving.model_runner import live_values
from torchsplit_core.stages import MANIFEST
from torchsplit_core.stages.export_child import write_stages
from torchsplit_core.values import InputFault, StageManifest

pytestmark = pytest.mark.torch

SOURCE = "sample:diamond"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The smallest sample, whose input is (rows, 16), as one stage."""
    folder = tmp_path_factory.mktemp("whole")
    client, _, program = sample_program("diamond")
    graph = graph_of(program)
    examples = {batch: example_arguments(client, batch) for batch in (2, 3)}
    manifest = write_stages(program, best_cut(graph, 1).stages, examples, folder, graph.architecture_hash)
    write_file(replace(manifest, source=SOURCE), folder / MANIFEST)
    return folder


def test_a_stage_gives_the_models_bits_and_its_process_ends(whole):
    rows = torch.randn(3, 16)
    result = run_stage(whole, SOURCE, [row.numpy().tobytes() for row in rows])
    with torch.no_grad(), one_thread():
        expected = sample_program("diamond")[1](rows)
    assert not result.fault and result.shapes == (tuple(expected.shape),)
    assert bytes(result.payload) == expected.numpy().tobytes()


def test_a_stage_that_was_changed_is_not_loaded(whole, tmp_path):
    for entry in whole.iterdir():
        (tmp_path / entry.name).write_bytes(entry.read_bytes())
    part = tmp_path / "stage0.pt2"
    part.write_bytes(part.read_bytes() + b" ")
    with pytest.raises(InputFault, match=r"model: .*stage0\.pt2.*SHA-256"):
        run_stage(tmp_path, SOURCE, [bytes(64)])


class Trap:
    """Unpickled, as example inputs of a .pt2 are when it is loaded, it makes an empty file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("level", available_levels())
def test_what_a_part_carries_is_held_like_the_code_of_a_model(whole, tmp_path, level, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", level)
    marker, folder = tmp_path / "sprung", tmp_path / "parts"
    folder.mkdir()
    pickled = BytesIO()
    torch.save((Trap(marker),), pickled)
    with zipfile.ZipFile(whole / "stage0.pt2") as old, zipfile.ZipFile(folder / "stage0.pt2", "w") as new:
        for name in old.namelist():
            armed = name.endswith("sample_inputs/model.pt")
            new.writestr(name, pickled.getvalue() if armed else old.read(name))
    _, manifest = read_file(whole / MANIFEST, expected="torchsplit.stages")
    digest = hashlib.sha256((folder / "stage0.pt2").read_bytes()).hexdigest()
    write_file(replace(manifest, stages=(replace(manifest.stages[0], sha256=digest),)), folder / MANIFEST)
    if level == "limits":  # the trap is live: without isolation it springs
        run_stage(folder, SOURCE, [bytes(64)])
        assert marker.exists()
    else:
        with pytest.raises(InputFault, match="model"):
            run_stage(folder, SOURCE, [bytes(64)])
        assert not marker.exists()


def test_values_that_skip_a_stage_are_passed_on(whole):
    manifest: StageManifest
    _, manifest = read_file(whole / MANIFEST, expected="torchsplit.stages")
    stage = manifest.stages[0]
    x, y = stage.inputs[0], stage.outputs[0]
    a, b = replace(x, name="a"), replace(x, name="b")
    chain = replace(manifest, stages=(
        replace(stage, inputs=(x,), outputs=(a, b)),
        replace(stage, inputs=(a,), outputs=(replace(x, name="c"),)),
        replace(stage, inputs=(b, replace(x, name="c")), outputs=(y,)),
    ))  # fmt: skip
    assert [live_values(chain, position) for position in range(3)] == [["a", "b"], ["b", "c"], [y.name]]
