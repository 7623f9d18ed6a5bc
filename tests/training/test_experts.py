"""Experts that are divided over ranks: the losses are those of one process that has them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.paths import ROOT
from tests.support.seeds import repeated
from tests.support.training.runs import losses, losses_divided, run, strategy
from torchsplit_core.training import fit_to_world_size
from torchsplit_core.values import InputFault

assert torch.distributed.is_available()
EXACT = 1e-5
DECODER = f"{ROOT / 'tests' / 'support' / 'training' / 'decoder.py'}"

DIVIDED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "two of four uneven ranks": (4, {"expert": 2, "micro_batch": 2}, {"shares": (3.0, 1.0, 1.0, 1.0)}),
    "sharded over two copies, recomputed": (4, {"expert": 2, "shard": "fsdp", "recompute": "full"}, {}),
    "all ranks, kept between passes": (4, {"expert": 4, "shard": "zero2"}, {}),
    "sharded over two ranks, recomputed in part": (
        2, {"expert": 2, "shard": "fsdp", "recompute": "selective"}, {},
    ),
    "with context": (4, {"expert": 4, "context": 2}, {}),
    "sharded over replicas": (4, {"expert": 2, "shard": "hsdp", "micro_batch": 2}, {}),
    "optimizer sharded over two copies": (4, {"expert": 2, "shard": "zero1"}, {}),
    "stages, uneven ranks, recomputed": (
        4, {"pipeline": 2, "expert": 2, "micro_batch": 2, "recompute": "full"}, {"shares": (3.0, 1.0)},
    ),
    "stages, sharded over two copies": (8, {"pipeline": 2, "expert": 2, "shard": "fsdp", "micro_batch": 1}, {}),
    "stages, sharded over replicas": (8, {"pipeline": 2, "expert": 2, "shard": "hsdp", "micro_batch": 1}, {}),
    "stages, optimizer sharded, with context": (
        8, {"pipeline": 2, "context": 2, "expert": 2, "shard": "zero1", "micro_batch": 2}, {},
    ),
    "stages, experts whole": (2, {"pipeline": 2, "micro_batch": 2}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process that takes each step in one pass."""
    folder = tmp_path_factory.mktemp("alone")
    return losses_divided(f"{DECODER}:mixture", folder, 1, {})


@repeated("name", DIVIDED, kept=0)
def test_divided_experts_have_the_losses_of_one_process(
    name: str, alone: list[float], tmp_path: Path
) -> None:
    processes, choices, options = DIVIDED[name]
    divided = losses_divided(f"{DECODER}:mixture", tmp_path, processes, choices, **options)
    assert divided == pytest.approx(alone, abs=EXACT)


@pytest.mark.repeated  # test_divisions.py shows it in `make test`
def test_a_checkpoint_is_read_by_other_divisions(alone: list[float], tmp_path: Path) -> None:
    divisions: list[tuple[int, dict[str, Any]]] = [
        (4, {"pipeline": 2, "expert": 2, "micro_batch": 2}),
        (2, {"expert": 2, "shard": "fsdp"}),
        (4, {"expert": 2, "shard": "zero1"}),
        (1, {"expert": 2}),
    ]
    for number, (processes, choices) in enumerate(divisions):
        plan = strategy(optimizer="adamw", **{"micro_batch": 4, **choices})
        run(f"{DECODER}:mixture", tmp_path, plan, processes, steps=2 * number + 2, resume=number > 0)
    assert losses(tmp_path) == pytest.approx(alone, abs=EXACT)


@pytest.mark.parametrize(
    ("client", "processes", "problem"),
    [
        ("client", 2, "the client has no expert_plan"),
        ("misnamed", 2, "which is no module"),
        ("mixture", 3, r"shape \(4, 8, 8\), which 3 ranks do not divide"),
    ],
)
def test_what_has_no_experts_to_divide_is_refused(
    client: str, processes: int, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(InputFault, match=problem):
        run(f"{DECODER}:{client}", tmp_path, strategy(expert=processes), processes)


def test_experts_are_divided_over_as_many_ranks_as_divide_the_processes() -> None:
    assert fit_to_world_size(strategy(expert=4), 6).choices.expert == 2
    assert fit_to_world_size(strategy(expert=4), 1).choices.expert == 1
