"""Stages of a pipeline that are divided further: the losses are those of one process, and any division goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.training.runs import (
    client_file,
    losses,
    losses_alone,
    losses_divided,
    run,
    strategy,
)
from torchsplit_core.checkpoints.trained_run import parse_run_source
from torchsplit_core.checkpoints.weights import read_weights
from torchsplit_core.values import InputFault

assert torch.distributed.is_available()
EXACT = 1e-5
DECODER = f"{ROOT / 'tests' / 'support' / 'training' / 'decoder.py'}:client"
TENSOR = {"pipeline": 2, "tensor": 2, "micro_batch": 2}
SEQUENCE = {**TENSOR, "sequence_parallel": True}
CONTEXT = {"pipeline": 2, "context": 2, "micro_batch": 2}

BLOCKS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "fsdp and offload": (4, {"pipeline": 2, "shard": "fsdp", "offload": "parameters", "micro_batch": 2}, {}),
    "hsdp": (8, {"pipeline": 2, "shard": "hsdp", "micro_batch": 1}, {}),
    "tensor": (4, TENSOR, {}),
    "tensor, uneven data ranks": (8, {**TENSOR, "micro_batch": 1}, {"shares": (3.0, 1.0)}),
    "tensor and fsdp": (8, {**TENSOR, "shard": "fsdp"}, {}),
    "tensor, two chunks a stage, recomputed": (4, {**TENSOR, "interleave": 2, "recompute": "full"}, {}),
}  # fmt: skip
DECODERS: dict[str, tuple[int, dict[str, Any]]] = {
    "sequence parallel": (4, SEQUENCE),
    "context": (4, CONTEXT),
    "context and sequence parallel, sharded": (8, {**CONTEXT, **SEQUENCE, "shard": "fsdp"}),
    "sequence parallel and zero1": (8, {**SEQUENCE, "shard": "zero1"}),
}


@pytest.fixture(scope="module")
def blocks_alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process that takes each step in one pass."""
    return losses_alone(tmp_path_factory.mktemp("blocks_alone"), samples=44, steps=8)


@pytest.fixture(scope="module")
def decoder_alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return losses_divided(DECODER, tmp_path_factory.mktemp("decoder_alone"), 1, {})


@repeated("name", BLOCKS, kept=1)
def test_divided_stages_have_the_losses_of_one_process(
    name: str, blocks_alone: list[float], tmp_path: Path
) -> None:
    processes, choices, options = BLOCKS[name]
    source = client_file(tmp_path, samples=44, blocks=4)
    assert losses_divided(source, tmp_path / "run", processes, choices, **options) == pytest.approx(
        blocks_alone, abs=EXACT
    )


@repeated("name", DECODERS, kept=0)
def test_divided_stages_of_a_decoder_have_the_losses_of_one_process(
    name: str, decoder_alone: list[float], tmp_path: Path
) -> None:
    processes, choices = DECODERS[name]
    divided = losses_divided(DECODER, tmp_path / "run", processes, choices)
    assert divided == pytest.approx(decoder_alone, abs=EXACT)


@pytest.mark.repeated  # test_divisions.py shows it in `make test`
def test_a_checkpoint_of_divided_stages_is_whole_and_read_by_other_divisions(
    blocks_alone: list[float], tmp_path: Path
) -> None:
    source = client_file(tmp_path, samples=44, blocks=4)
    alone, divided = tmp_path / "alone", tmp_path / "divided"
    whole = strategy(optimizer="adamw", micro_batch=8)
    run(source, alone, whole, 1, steps=2)
    starts: list[tuple[int, dict[str, Any]]] = [(4, TENSOR), (4, TENSOR), (2, {"tensor": 2}), (1, {})]
    for number, (processes, choices) in enumerate(starts):
        plan = strategy(optimizer="adamw", **{"micro_batch": 4, **choices})
        run(source, divided, plan, processes, steps=2 * number + 2, resume=number > 0)
        if number == 0:
            gathered, expected = (
                read_weights(parse_run_source(f"{folder}@step-2"))[0] for folder in (divided, alone)
            )
            assert gathered.keys() == expected.keys()
            for name, weight in expected.items():
                torch.testing.assert_close(gathered[name], weight, atol=EXACT, rtol=0.0)
    assert losses(divided) == pytest.approx(blocks_alone, abs=EXACT)


@pytest.mark.repeated
def test_tensor_ranks_of_a_stage_drop_the_same_values(tmp_path: Path) -> None:
    """Else the first step ends the run: its ranks have different gradients."""
    source = client_file(tmp_path, dropout=0.5)
    run(source, tmp_path / "run", strategy(**TENSOR), 4, steps=2)
    assert len(losses(tmp_path / "run")) == 2


@repeated(
    ("source", "choices", "problem"),
    [
        ("sample:diamond", TENSOR, "the client has no tensor_plan"),
        (DECODER, {**CONTEXT, "context": 3}, "has sequences of 8 positions, which 3 ranks do not cut"),
        (DECODER, {**SEQUENCE, "tensor": 3}, r"query\.weight, whose size 8 3 ranks do not divide"),
        (
            DECODER.replace(":client", ":unnamed"),
            SEQUENCE,
            r"leaves layers\.\d\.feed_norm\.weight whole on all",
        ),
    ],
    kept=3,
)
def test_stages_that_would_be_divided_wrongly_are_refused(
    source: str, choices: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InputFault, match=problem):
        processes = 2 * choices.get("tensor", 1) * choices.get("context", 1)
        run(source, tmp_path / "run", strategy(**choices), processes)
