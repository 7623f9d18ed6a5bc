"""Stages in processes: what crosses arrives as it was, faults name their stage, nothing is left running."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.partitioning.parts import (
    assert_same,
    best_cut,
    cut_after,
    exported,
    graph_of,
    one_thread,
    sample_program,
)
from torchsplit_core.files import read_file, write_file
from torchsplit_core.isolation import available_levels
from torchsplit_core.model_source import example_arguments
from torchsplit_core.stages import MANIFEST, StagePipeline
from torchsplit_core.stages.bit_equal import same_bits
from torchsplit_core.stages.export_child import write_stages
from torchsplit_core.stages.pipeline_monitor import PipelineMonitor
from torchsplit_core.stages.tensor_transport import StreamClosed, receive_values, send_values
from torchsplit_core.values import InputFault


def crossed(values: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """The values as they come out at the other end of a socket."""
    sender, receiver = socket.socketpair()
    with sender, receiver:
        thread = threading.Thread(target=send_values, args=(sender, number, values))
        thread.start()
        told, found = receive_values(receiver)
        thread.join()
    assert told == number
    return found


BASE = torch.arange(2 * 3 * 40, dtype=torch.float32).reshape(2, 3, 40)
SHAPES = {
    "dense": BASE,
    "transposed": BASE.transpose(0, 2),
    "a chunk": BASE.chunk(4, dim=2)[1],
    "an offset": BASE.view(-1)[7:50],
    "a step": BASE[:, :, ::3],
    "expanded": BASE[:, :1, :5].expand(2, 6, 5),
    "windows": BASE.view(-1).unfold(0, 8, 2),
    "overlap and gap": torch.arange(9.0).as_strided((2, 2, 2), (5, 1, 1)),
    "no rows": BASE[:0],
    "a number in a tensor": torch.tensor(3.5),
    "NaN and -0.0": torch.tensor([float("nan"), -0.0, float("inf")]),
    "large": torch.randn(300, 1000),
    **{
        str(dtype): torch.ones(5).to(dtype)
        for dtype in (torch.bool, torch.bfloat16, torch.int64, torch.complex64)
    },
    "conjugate": torch.randn(3, 2, dtype=torch.complex64).conj(),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_tensor_arrives_with_its_bits_strides_and_place_in_a_cache_line(name: str) -> None:
    sent = SHAPES[name]
    found = crossed({"x": sent})["x"]
    assert same_bits(found, sent) and found.stride() == sent.resolve_conj().stride()
    if sent.numel():
        assert (found.data_ptr() - sent.resolve_conj().data_ptr()) % 64 == 0 or sent.is_conj()


def test_numbers_keep_their_type_and_messages_their_number() -> None:
    found = crossed({"n": 7, "f": 0.1, "b": True, "x": BASE}, number=41)
    assert [(type(v), v) for v in list(found.values())[:3]] == [(int, 7), (float, 0.1), (bool, True)]


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(TypeError, match="sparse"):
        crossed_alone(BASE[0].to_sparse())
    with pytest.raises(TypeError, match="x is a str"):
        crossed_alone("text")


def crossed_alone(value: Any) -> None:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        send_values(sender, 0, {"x": value})


@pytest.mark.parametrize(("content", "clean"), [(b"", True), (b"\x08\x00", False), (b"\xff" * 8, False)])
def test_the_end_of_a_stream_within_a_message_is_told_from_one_between(content: bytes, clean: bool) -> None:
    sender, receiver = socket.socketpair()
    with receiver:
        with sender:
            sender.sendall(content)
        with pytest.raises(StreamClosed) as caught:
            receive_values(receiver)
    assert caught.value.clean == clean


def parts_of_sample(name: str, folder: Path, stages: int) -> Path:
    """A small sample in so many parts; the export in a child of its own has its tests elsewhere."""
    client, _, program = sample_program(name)
    graph = graph_of(program)
    examples = {batch: example_arguments(client, batch) for batch in (2, 3)}
    cut = best_cut(graph, stages).stages
    write_file(write_stages(program, cut, examples, folder, graph.architecture_hash), folder / MANIFEST)
    return folder


@pytest.fixture(scope="module")
def diamond(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts of the smallest sample, whose input is (rows, 16)."""
    return parts_of_sample("diamond", tmp_path_factory.mktemp("diamond"), 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One part: what is about feeding and taking out needs no second process, which costs seconds."""
    return parts_of_sample("diamond", tmp_path_factory.mktemp("whole"), 1)


def working(pid: int) -> int:
    """The process that computes: the last of the chain of children that starts with a stage's supervisor."""
    while found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(found[0])
    return pid


def alive(pipeline: StagePipeline) -> list[int]:
    """Those of its processes that still run."""
    found = []
    for member in pipeline._stages:
        try:
            os.kill(member.process.pid, 0)
        except ProcessLookupError:
            continue
        found.append(member.process.pid)
    return found


def test_a_pipeline_gives_the_models_results_in_order_and_ends_its_processes(tmp_path: Path) -> None:
    folder = parts_of_sample("bert", tmp_path, 3)
    client, model, _ = sample_program("bert")
    sizes = [3, 1, 5, 2, 8, 4] * 5
    inputs = {size: example_arguments(client, size)[0] for size in sizes}
    with one_thread(), StagePipeline(folder, trust=True) as pipeline:
        for _ in range(2):
            seen = 0
            for size, found in zip(sizes, pipeline.run(inputs[n] for n in sizes), strict=True):
                with torch.no_grad():
                    assert_same(found, model(*inputs[size]))
                seen += 1
            assert seen == len(sizes)
        assert list(pipeline.run([])) == [] and len(alive(pipeline)) == 3
    assert alive(pipeline) == [] and [m.process.returncode for m in pipeline._stages] == [0, 0, 0]
    with pytest.raises(InputFault, match="is closed or runs already"):
        next(pipeline.run([]))


X = torch.randn(2, 16)


@pytest.mark.parametrize(
    ("sign", "stage", "limit_s", "told"),
    [
        (signal.SIGKILL, 1, 60.0, "stage1: was ended by SIGKILL"),
        # Longer than a batch takes on a busy machine.
        (signal.SIGSTOP, 0, 4.0, r"stage0: gave no result for batch .* within 4 s"),
    ],
)
def test_a_stage_that_dies_or_stands_still_is_named(
    diamond: Path, sign: int, stage: int, limit_s: float, told: str
) -> None:
    signalled = threading.Event()

    def batches() -> Iterator[tuple[torch.Tensor]]:
        """Four at once; the rest only after the signal, however fast the stages are."""
        for i in range(60):
            assert i < 4 or signalled.wait(60)
            yield (X,)

    with StagePipeline(diamond, trust=True, batch_timeout_s=limit_s) as pipeline:
        with pytest.raises(InputFault, match=told):
            for i, _ in enumerate(pipeline.run(batches())):
                if i == 3:
                    os.kill(working(pipeline._stages[stage].process.pid), sign)
                    signalled.set()
        assert alive(pipeline) == []


def test_the_callers_own_faults_come_out_behind_the_results_before_them(whole: Path) -> None:
    with StagePipeline(whole, trust=True) as pipeline:
        run = pipeline.run([(X,), (X,), (X[:, :3],)])
        assert next(run).shape == next(run).shape
        with pytest.raises(InputFault, match="input x"):
            next(run)
        assert alive(pipeline) == []


def test_a_run_left_early_ends_its_processes(whole: Path) -> None:
    with StagePipeline(whole, trust=True) as pipeline:
        run = pipeline.run([(X,)] * 10)
        next(run)
        run.close()
        assert alive(pipeline) == []


class Ended:
    """A feeder that sent one batch, then ended with the caller's fault, and whose wake-ups were all taken."""

    sent, ended, error = 1, True, ValueError("the caller's own")

    def __init__(self) -> None:
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)


@pytest.mark.timeout(30)
def test_the_callers_fault_needs_no_message_after_the_last_result() -> None:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        results = PipelineMonitor([], receiver).results(Ended(), 1e6)  # type: ignore[arg-type]
        send_values(sender, 0, {})
        assert next(results) == 0
        receive_values(receiver)
        with pytest.raises(ValueError, match="the caller's own"):
            next(results)


class Lookup(torch.nn.Module):
    """Fails on an index beyond its eight rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(8, 4)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.rows(index) + 1  # type: ignore[no-any-return]


def test_a_fault_within_a_stage_is_told_with_its_name(tmp_path: Path) -> None:
    index = torch.tensor([1, 2])
    program = exported(Lookup(), index, other=(torch.tensor([1, 2, 3]),))
    digest = graph_of(program).architecture_hash
    manifest = write_stages(program, cut_after(program), {2: ((index,), {})}, tmp_path, digest)
    write_file(manifest, tmp_path / MANIFEST)
    with (
        StagePipeline(tmp_path, trust=True) as pipeline,
        pytest.raises(InputFault, match=r"stage0: .*IndexError: index out of range"),
    ):
        list(pipeline.run([(index,), (index + 10**6,)]))
    assert alive(pipeline) == []


def test_a_part_that_was_changed_is_not_loaded(diamond: Path, tmp_path: Path) -> None:
    for entry in diamond.iterdir():
        (tmp_path / entry.name).write_bytes(entry.read_bytes())
    part = tmp_path / "stage1.pt2"
    part.write_bytes(part.read_bytes() + b" ")
    with pytest.raises(InputFault, match="was not written here and is not trusted"):
        StagePipeline(tmp_path)
    with pytest.raises(InputFault, match=r"stage1: .*stage1.pt2: .*SHA-256"):
        StagePipeline(tmp_path, trust=True)


class Trap:
    """Unpickled, as example inputs of a .pt2 are when it is loaded, it makes an empty file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("level", available_levels())
def test_what_a_part_carries_is_held_like_the_code_of_a_model(
    whole: Path, tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        with StagePipeline(folder, trust=True):
            assert marker.exists()
    else:
        with pytest.raises(InputFault, match="stage0: "):
            StagePipeline(folder, trust=True)
        assert not marker.exists()
