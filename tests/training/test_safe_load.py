"""What a checkpoint that somebody else wrote may hold: weights and plain values, and never code that runs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

from tests.support.training.runs import client_file, losses, run, strategy
from torchsplit_core.checkpoints.safe_load import METADATA, SafePlanner, SafeReader
from torchsplit_core.checkpoints.store import read_manifest
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
PLAN = strategy(optimizer="adamw", micro_batch=4)


class Command:
    """Whoever unpickles it makes the file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def written(folder: Path) -> dict[str, Any]:
    """A checkpoint with an item of each kind, and what it holds."""
    state = {
        "weight": torch.arange(6.0).reshape(2, 3),
        "lr": 0.1,
        "words": "text",
        "betas": (0.9, 0.99),
        "no": None,
    }
    dcp.save({"model": state}, checkpoint_id=folder, no_dist=True)
    return state


def read(folder: Path) -> dict[str, Any]:
    state = {"weight": torch.zeros(2, 3), "lr": 0.0, "words": "", "betas": (0.0, 0.0), "no": 1}
    whole = {"model": state}
    dcp.load(whole, storage_reader=SafeReader(folder), planner=SafePlanner(), no_dist=True)
    return whole["model"]


def forge_metadata(folder: Path, mark: Path) -> None:
    (folder / METADATA).write_bytes(pickle.dumps(Command(mark)))


def forge_inside(folder: Path, mark: Path) -> None:
    """The list of items, with a command as one of its values."""
    metadata = pickle.loads((folder / METADATA).read_bytes())
    metadata.planner_data = {"x": Command(mark)}
    (folder / METADATA).write_bytes(pickle.dumps(metadata))


def forge_item(kind: type) -> Callable[[Path, Path], None]:
    def forge(folder: Path, mark: Path) -> None:
        metadata = pickle.loads((folder / METADATA).read_bytes())
        info = next(
            info
            for key, info in metadata.storage_data.items()
            if isinstance(metadata.state_dict_metadata[key.fqn], kind)
        )
        file, stream = folder / info.relative_path, io.BytesIO()
        torch.save(Command(mark), stream)
        info.offset, info.length = file.stat().st_size, len(stream.getvalue())
        file.write_bytes(file.read_bytes() + stream.getvalue())
        (folder / METADATA).write_bytes(pickle.dumps(metadata))

    return forge


FORGED = {
    "metadata": forge_metadata,
    "in the metadata": forge_inside,
    "a value": forge_item(BytesStorageMetadata),
    "a tensor": forge_item(TensorStorageMetadata),
}


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    state, found = written(tmp_path), read(tmp_path)
    assert torch.equal(found.pop("weight"), state.pop("weight")) and found == state


@pytest.mark.parametrize("how", FORGED)
def test_a_command_in_a_checkpoint_is_named_and_not_run(how: str, tmp_path: Path) -> None:
    written(tmp_path / "one")
    FORGED[how](tmp_path / "one", tmp_path / "mark")
    with pytest.raises((InputFault, CheckpointException)) as raised:
        read(tmp_path / "one")
    told = raised.value
    fault = told if isinstance(told, InputFault) else told.failures[0][0]
    assert isinstance(fault, InputFault)
    assert "'posix.mkdir', which is no part of a checkpoint" in fault.problem
    assert not (tmp_path / "mark").exists()


def test_a_run_folder_of_somebody_else_runs_nothing(tmp_path: Path) -> None:
    """Gone on with, manifest and all, as one would who was handed the folder."""
    source = client_file(tmp_path)
    run(source, tmp_path / "run", PLAN, 1, steps=2)
    for how in ("metadata", "a value"):
        copy = tmp_path / how
        shutil.copytree(tmp_path / "run", copy)
        checkpoint = copy / "checkpoints" / "step-00000002"
        FORGED[how](checkpoint, tmp_path / "mark")
        sign(checkpoint)
        with pytest.raises(InputFault, match=r"step-00000002: asks to load 'posix\.mkdir'"):
            run(source, copy, PLAN, 1, steps=4, resume=True)
        assert not (tmp_path / "mark").exists()
    run(source, tmp_path / "run", PLAN, 1, steps=4, resume=True)
    assert len(losses(tmp_path / "run")) == 4


def sign(checkpoint: Path, **changes: object) -> None:
    """Have the manifest name what is there now."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"] = {
        one.name: [one.stat().st_size, hashlib.sha256(one.read_bytes()).hexdigest()]
        for one in checkpoint.iterdir()
        if one != path
    }
    path.write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "EOFError"),
        (b"\x80\x04.", "it is no metadata"),
        (pickle.dumps({"state_dict_metadata": {}}), "not the list of a checkpoint's items"),
        (b"\x80\x04\x8c\x05torch\x8c\x0cSize.__new__\x93.", r"'torch\.Size\.__new__'"),
        (b"ctorch.serialization\nload\n.", r"'torch\.serialization\.load'"),
        (b"cbuiltins\neval\n(S'1'\ntR.", r"'builtins\.eval'"),
        (b"ctorchsplit_core.running.reading\n_Unpickler\n.", "_Unpickler"),
    ],
)
def test_metadata_of_any_other_form_is_one_message(content: bytes, word: str, tmp_path: Path) -> None:
    (tmp_path / METADATA).write_bytes(content)
    with pytest.raises(InputFault, match=word):
        SafeReader(tmp_path)


def test_items_lie_beside_the_metadata(tmp_path: Path) -> None:
    written(tmp_path)
    metadata = pickle.loads((tmp_path / METADATA).read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = f"../{tmp_path.name}/{info.relative_path}"
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(InputFault, match="not the list"):
        SafeReader(tmp_path)


def test_weights_of_every_type_of_numbers_are_read(tmp_path: Path) -> None:
    kinds = (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.bool,
        torch.uint8,
    )
    state = {str(kind): torch.zeros(3, dtype=kind) for kind in kinds}
    dcp.save(state, checkpoint_id=tmp_path, no_dist=True)
    assert set(SafeReader(tmp_path).read_metadata().state_dict_metadata) == set(state)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"step": "2"}, "it is not the list of the files"),
        ({"step": 3}, "it is not the list of the files"),
        ({"world_size": -1}, "it is not the list of the files"),
        ({"samples": 10**400}, "it is not the list of the files"),
        (
            {"files": {"../manifest.json": [1, "x"]}},
            r"names '\.\./manifest\.json', which is no file beside it",
        ),
        ({"files": {"pipe": [0, "x"]}}, "names 'pipe', which is no file beside it"),
        ({"files": {"gone": [0, "x"]}}, "gone cannot be read: no such file"),
        ({"files": {".metadata": ["1", "x"]}}, "it is not the list of the files"),
    ],
)
def test_a_manifest_names_files_beside_it_alone(
    changes: dict[str, object], word: str, tmp_path: Path
) -> None:
    """One that names a pipe or a device is not waited for."""
    folder = tmp_path / "step-00000002"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    whole: dict[str, object] = {
        "step": 2,
        "epoch": 0,
        "offset": 0,
        "world_size": 1,
        "global_batch": 8,
        "samples": 64,
        "seed": 0,
    }
    whole |= {"model": "m", "model_sha256": "x", "torch_version": "2", "files": {}}
    (folder / "manifest.json").write_text(json.dumps(whole))
    assert read_manifest(folder).step == 2
    (folder / "manifest.json").write_text(json.dumps(whole | changes))
    with pytest.raises(InputFault, match=word):
        read_manifest(folder)


def test_lines_that_no_run_wrote_end_its_steps(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_step(1, 0.5, 8, 0.5, 2, 1024)
    good = (tmp_path / "metrics.jsonl").read_bytes()
    for line in (
        b"[1]\n",
        b'{"step": "x", "loss": 1}\n',
        b'{"step": 2}\n',
        b"\x80\x04.\n",
        b"[" * 3000 + b"\n",
    ):
        (tmp_path / "metrics.jsonl").write_bytes(good + line)
        assert [step["step"] for step in folder.steps()] == [1]
        assert (folder.last_step() or {})["step"] == 1
    assert folder.truncate_steps_after(1) == 0 and (tmp_path / "metrics.jsonl").read_bytes() == good
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(InputFault, match="it is not JSON"):
        folder.facts()
