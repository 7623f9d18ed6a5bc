"""Sequences that are divided over ranks: the losses are those of one process that has them whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.training.runs import client_file, events, losses, run, strategy
from torchsplit_core.values import InputFault

assert torch.distributed.is_available()
EXACT = 1e-5
DECODER = f"{ROOT / 'tests' / 'support' / 'training' / 'decoder.py'}:client"
SEQUENCE = {"tensor": 2, "sequence_parallel": True}

DIVIDED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "sequence parallel": (2, SEQUENCE, {}),
    "sequence parallel, uneven data ranks, recomputed": (
        4, {**SEQUENCE, "micro_batch": 2, "recompute": "full"}, {"shares": (3.0, 1.0)},
    ),
    "sequence parallel and fsdp": (4, {**SEQUENCE, "shard": "fsdp", "micro_batch": 4}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process that takes each step in one pass."""
    folder = tmp_path_factory.mktemp("alone")
    run(DECODER, folder, strategy(optimizer="adamw", micro_batch=8), 1, steps=8, checkpoint_every=100)
    return losses(folder)


@repeated("name", DIVIDED, kept=1)
def test_divided_sequences_have_the_losses_of_one_process(
    name: str, alone: list[float], tmp_path: Path
) -> None:
    processes, choices, options = DIVIDED[name]
    plan = strategy(optimizer="adamw", **{"micro_batch": 8, **choices})
    run(DECODER, tmp_path / "run", plan, processes, steps=8, checkpoint_every=100, **options)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    assert "without sequence parallelism" not in events(tmp_path / "run", "started")[0]["words"]


@pytest.mark.parametrize(
    ("client", "choices", "problem"),
    [
        ("unnamed", SEQUENCE, r"leaves layers\.0\.feed_norm\.weight whole on all tensor ranks"),
        ("client", {**SEQUENCE, "tensor": 3}, r"over 3 ranks, but these have 8 positions"),
    ],
)
def test_sequences_that_would_be_divided_wrongly_are_refused(
    client: str, choices: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    source = DECODER.replace(":client", f":{client}")
    with pytest.raises(InputFault, match=problem):
        run(source, tmp_path / "run", strategy(**choices), choices["tensor"])


def test_tensor_ranks_drop_the_same_values_also_after_a_checkpoint_of_another_division(
    tmp_path: Path,
) -> None:
    """Else the first step of a start ends the run: its ranks have different gradients."""
    source = client_file(tmp_path, dropout=0.5)
    run(source, tmp_path / "run", strategy(), 2, steps=2)
    for steps, processes in ((4, 2), (6, 4)):
        run(source, tmp_path / "run", strategy(tensor=2), processes, steps=steps, resume=True)
    assert len(losses(tmp_path / "run")) == 6
