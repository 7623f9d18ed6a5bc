"""Sequences that are divided over ranks: the losses are those of one process that has them whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.training.runs import client_file, events, losses, losses_divided, run, strategy
from torchsplit_core.training.division.context import ContextParallel
from torchsplit_core.training.process_group import join_process_group
from torchsplit_core.values import InputFault
from torchsplit_core.values.training import ParallelConfig

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
    "context, uneven data ranks": (4, {"context": 2, "micro_batch": 2}, {"shares": (3.0, 1.0)}),
    "context and fsdp, recomputed": (2, {"context": 2, "shard": "fsdp", "recompute": "full"}, {}),
    "context and zero1 over four ranks": (4, {"context": 4, "shard": "zero1"}, {}),
    "context and sequence parallel": (4, {**SEQUENCE, "context": 2}, {}),
    "context and sequence parallel, sharded": (4, {**SEQUENCE, "context": 2, "shard": "hsdp"}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process that takes each step in one pass."""
    folder = tmp_path_factory.mktemp("alone")
    return losses_divided(DECODER, folder, 1, {})


@repeated("name", DIVIDED, kept=1)
def test_divided_sequences_have_the_losses_of_one_process(
    name: str, alone: list[float], tmp_path: Path
) -> None:
    processes, choices, options = DIVIDED[name]
    divided = losses_divided(DECODER, tmp_path / "run", processes, choices, **options)
    assert divided == pytest.approx(alone, abs=EXACT)
    assert "without sequence parallelism" not in events(tmp_path / "run", "started")[0]["words"]


@repeated(
    ("client", "choices", "problem"),
    [
        ("client", {**SEQUENCE, "tensor": 3}, r"over 3 ranks, but these have 8 positions"),
        ("unnamed", SEQUENCE, r"leaves layers\.0\.feed_norm\.weight whole on all tensor ranks"),
    ],
)
def test_sequences_that_would_be_divided_wrongly_are_refused(
    client: str, choices: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    source = DECODER.replace(":client", f":{client}")
    with pytest.raises(InputFault, match=problem):
        run(source, tmp_path / "run", strategy(**choices), choices["tensor"])


def test_a_mask_of_the_keys_is_divided_and_gathered(tmp_path: Path) -> None:
    source = DECODER.replace(":client", ":masked")
    for context in (1, 2):
        plan = strategy(optimizer="adamw", micro_batch=8, context=context)
        run(source, tmp_path / f"{context}", plan, context, steps=4, checkpoint_every=100)
    assert losses(tmp_path / "2") == pytest.approx(losses(tmp_path / "1"), abs=EXACT)
    (started,) = events(tmp_path / "2", "started")
    assert "context 2: each rank gathers the keys and values of its attention" in started["words"]


@pytest.mark.repeated  # test_divisions.py shows it in `make test`
def test_a_checkpoint_is_read_by_other_divisions(alone: list[float], tmp_path: Path) -> None:
    divisions: list[tuple[int, dict[str, Any]]] = [
        (4, {**SEQUENCE, "context": 2, "shard": "zero1"}),
        (2, {"context": 2, "shard": "fsdp"}),
        (2, SEQUENCE),
        (1, {}),
    ]
    for number, (processes, choices) in enumerate(divisions):
        plan = strategy(optimizer="adamw", micro_batch=4, **choices)
        run(DECODER, tmp_path / "run", plan, processes, steps=2 * number + 2, resume=number > 0)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)


@pytest.fixture
def group() -> Iterator[None]:
    """A group of this process alone."""
    join_process_group()
    yield
    torch.distributed.destroy_process_group()


PLAN = {"inputs": (1,), "targets": (1,), "positions": None}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (None, "the client has no context_plan"),
        ({**PLAN, "input": (1,)}, "has 'input'"),
        ({"inputs": (1,)}, "lacks targets and positions"),
        ({**PLAN, "inputs": (1, 1)}, "has 2 inputs, but a sample has 1"),
        ({**PLAN, "targets": (None,), "inputs": (None,)}, "names no dimension"),
        ({**PLAN, "targets": (2,)}, r"names dimensions of \[0, 6\] positions"),
        ({**PLAN, "inputs": (2,), "targets": (None,)}, r"has sequences of 3 positions"),
        (PLAN, r"a mask of the shape \(6, 6\)"),
        (PLAN, "never calls"),
    ],
)
def test_what_of_sequences_would_be_divided_wrongly_is_refused(
    plan: dict[str, Any] | None, problem: str
) -> None:
    with pytest.raises(InputFault, match=problem):
        context = ContextParallel(torch.nn.Identity(), ParallelConfig(), plan, torch.device("cpu"))
        with context.divide([torch.ones(1, 6, 3), torch.ones(1, 6)]) as (x, _):
            if "mask" in problem:
                torch.nn.functional.scaled_dot_product_attention(x, x, x, torch.ones(6, 6))
            context.check_attended()


@pytest.mark.repeated
def test_tensor_ranks_drop_the_same_values_also_after_a_checkpoint_of_another_division(
    tmp_path: Path,
) -> None:
    """Else the first step of a start ends the run: its ranks have different gradients."""
    source = client_file(tmp_path, dropout=0.5)
    run(source, tmp_path / "run", strategy(), 2, steps=2)
    for steps, processes in ((4, 2), (6, 4)):
        run(source, tmp_path / "run", strategy(tensor=2), processes, steps=steps, resume=True)
    assert len(losses(tmp_path / "run")) == 6
