"""Stages in processes: what crosses arrives as it was, faults name their stage, nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from partition_parts import assert_same, best_cut, graph_of, one_thread, sample_program

from torchsplit_core.clients import example_arguments
from torchsplit_core.files import write_file
from torchsplit_core.stages import MANIFEST, StagePipeline, export_stages
from torchsplit_core.stages.export_child import write_stages
from torchsplit_core.stages.same import same_bits
from torchsplit_core.stages.wire import Closed, receive_values, send_values
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
        with pytest.raises(Closed) as caught:
            receive_values(receiver)
    assert caught.value.clean == clean


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any, torch.nn.Module]]:
    """Three parts of BERT, exported as a user does, its client and the model itself."""
    client, model, program = sample_program("bert")
    graph = graph_of(program)
    folder = tmp_path_factory.mktemp("bert") / "parts"
    export_stages("sample:bert", best_cut(graph, 3), folder, architecture_hash=graph.architecture_hash)
    with one_thread():
        yield folder, client, model


@pytest.fixture(scope="module")
def diamond(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts of the smallest sample, whose input is (rows, 16)."""
    client, _, program = sample_program("diamond")
    graph = graph_of(program)
    folder = tmp_path_factory.mktemp("diamond")
    examples = {batch: example_arguments(client, batch) for batch in (2, 3)}
    manifest = write_stages(program, best_cut(graph, 2).stages, examples, folder, graph.architecture_hash)
    write_file(manifest, folder / MANIFEST)
    return folder


def alive(pipeline: StagePipeline) -> list[int]:
    """Those of its processes that still run."""
    found = []
    for member in pipeline._members:
        try:
            os.kill(member.process.pid, 0)
        except ProcessLookupError:
            continue
        found.append(member.process.pid)
    return found


def test_a_pipeline_gives_the_models_results_in_order_and_ends_its_processes(bert: Any) -> None:
    folder, client, model = bert
    sizes = [3, 1, 5, 2, 8, 4] * 5
    inputs = {size: example_arguments(client, size)[0] for size in sizes}
    with StagePipeline(folder) as pipeline:
        for _ in range(2):
            seen = 0
            for size, found in zip(sizes, pipeline.run(inputs[n] for n in sizes), strict=True):
                with torch.no_grad():
                    assert_same(found, model(*inputs[size]))
                seen += 1
            assert seen == len(sizes)
        assert list(pipeline.run([])) == [] and len(alive(pipeline)) == 3
    assert alive(pipeline) == [] and [m.process.returncode for m in pipeline._members] == [0, 0, 0]
    with pytest.raises(InputFault, match="closed or running"):
        next(pipeline.run([]))


X = torch.randn(2, 16)


@pytest.mark.parametrize(
    ("sign", "stage", "told"),
    [(signal.SIGKILL, 1, "stage1: ended by SIGKILL"), (signal.SIGSTOP, 0, r"stage0: no result after 1.5 s")],
)
def test_a_stage_that_dies_or_stands_still_is_named(diamond: Path, sign: int, stage: int, told: str) -> None:
    signalled = threading.Event()

    def batches() -> Iterator[tuple[torch.Tensor]]:
        """Four at once; the rest only after the signal, however fast the stages are."""
        for i in range(60):
            assert i < 4 or signalled.wait(60)
            yield (X,)

    with StagePipeline(diamond, trust=True, batch_timeout_s=1.5) as pipeline:
        with pytest.raises(InputFault, match=told):
            for i, _ in enumerate(pipeline.run(batches())):
                if i == 3:
                    os.kill(pipeline._members[stage].process.pid, sign)
                    signalled.set()
        assert alive(pipeline) == []


def test_the_callers_own_faults_come_out_behind_the_results_before_them(diamond: Path) -> None:
    with StagePipeline(diamond, trust=True) as pipeline:
        run = pipeline.run([(X,), (X,), (X[:, :3],)])
        assert next(run).shape == next(run).shape
        with pytest.raises(InputFault, match="input x"):
            next(run)
        assert alive(pipeline) == []


def test_a_run_left_early_ends_its_processes(diamond: Path) -> None:
    with StagePipeline(diamond, trust=True) as pipeline:
        run = pipeline.run([(X,)] * 10)
        next(run)
        run.close()
        assert alive(pipeline) == []


def test_a_fault_within_a_stage_is_told_with_its_name(bert: Any) -> None:
    folder, client, _ = bert
    ids, mask, segments = example_arguments(client, 2)[0]
    with (
        StagePipeline(folder) as pipeline,
        pytest.raises(InputFault, match=r"stage0: .*IndexError: index out of range"),
    ):
        list(pipeline.run([(ids + 10**6, mask, segments)]))
    assert alive(pipeline) == []


def test_a_part_that_was_changed_is_not_loaded(diamond: Path, tmp_path: Path) -> None:
    for entry in diamond.iterdir():
        (tmp_path / entry.name).write_bytes(entry.read_bytes())
    part = tmp_path / "stage1.pt2"
    part.write_bytes(part.read_bytes() + b" ")
    with pytest.raises(InputFault, match="this user's own or trusted"):
        StagePipeline(tmp_path)
    with pytest.raises(InputFault, match=r"stage1: .*stage1.pt2: .*sha256"):
        StagePipeline(tmp_path, trust=True)
