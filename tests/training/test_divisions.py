"""A step is the same however its work is divided: the losses are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.seeds import repeated
from tests.support.training.runs import client_file, events, losses, run, strategy
from torchsplit_core.training import RunFolder
from torchsplit_core.training.parallelize import replicas_and_shards
from torchsplit_core.values import InputFault

assert torch.distributed.is_available()
EXACT = 1e-6
PLAN = strategy(optimizer="adamw", micro_batch=8)

DIVIDED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "ddp": (2, {}, {}),
    "ddp, three uneven ranks, passes of two samples": (3, {"micro_batch": 2}, {"shares": (5.0, 2.0, 1.0)}),
    "zero1": (2, {"shard": "zero1", "micro_batch": 8}, {}),
    "zero2": (2, {"shard": "zero2", "micro_batch": 4}, {}),
    "fsdp, uneven ranks": (2, {"shard": "fsdp", "micro_batch": 3}, {"shares": (3.0, 1.0)}),
    "fsdp, recomputed and offloaded": (
        2, {"shard": "fsdp", "recompute": "full", "offload": "parameters", "micro_batch": 4}, {},
    ),
    "hsdp": (4, {"shard": "hsdp", "micro_batch": 2}, {}),
    "tensor": (2, {"tensor": 2, "micro_batch": 8}, {}),
    "tensor and fsdp": (4, {"tensor": 2, "shard": "fsdp", "micro_batch": 4}, {}),
    "tensor and uneven ranks, passes of two samples": (
        4, {"tensor": 2, "micro_batch": 2}, {"shares": (3.0, 1.0)},
    ),
    "tensor and zero1": (4, {"tensor": 2, "shard": "zero1", "micro_batch": 4}, {}),
    "tensor and hsdp": (8, {"tensor": 2, "shard": "hsdp", "micro_batch": 2}, {}),
    "recomputed in part": (1, {"recompute": "selective", "micro_batch": 8}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process that takes each step in one pass."""
    folder = tmp_path_factory.mktemp("alone")
    run(client_file(folder, samples=44), folder / "run", PLAN, 1, steps=8, checkpoint_every=100)
    return losses(folder / "run")


@repeated("name", DIVIDED, kept=1)
def test_a_division_has_the_losses_of_one_process(name: str, alone: list[float], tmp_path: Path) -> None:
    """44 samples in steps of 8: the sixth step of a pass has 4."""
    processes, choices, options = DIVIDED[name]
    source = client_file(tmp_path, samples=44)
    plan = strategy(optimizer="adamw", **choices)
    run(source, tmp_path / "run", plan, processes, steps=8, checkpoint_every=100, **options)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)


@repeated(
    "divisions",
    [
        [(4, {"tensor": 2, "shard": "hsdp"}), (1, {})],
        [
            (4, {"tensor": 2, "shard": "zero1"}),
            (4, {"tensor": 2, "shard": "hsdp"}),
            (4, {"tensor": 2}),
            (1, {}),
        ],
    ],
    ids=len,
)
def test_a_checkpoint_is_read_by_other_divisions(
    divisions: list[tuple[int, dict[str, Any]]], alone: list[float], tmp_path: Path
) -> None:
    """Two steps by each: the states of the optimizer are divided otherwise every time."""
    source = client_file(tmp_path, samples=44)
    for number, (processes, choices) in enumerate(divisions):
        plan = strategy(optimizer="adamw", micro_batch=4, **choices)
        run(source, tmp_path / "run", plan, processes, steps=2 * number + 2, resume=number > 0)
    assert losses(tmp_path / "run") == pytest.approx(alone[: 2 * len(divisions)], abs=EXACT)


@pytest.mark.parametrize(
    ("data", "per_node", "shape"),
    [(8, 4, (2, 4)), (4, 4, (2, 2)), (8, 8, (2, 4)), (5, 5, (1, 5))],
    ids=["two nodes", "one node", "one node of eight", "ranks that cannot be halved"],
)
def test_a_replica_of_hsdp_is_a_node_or_half_of_one(data: int, per_node: int, shape: tuple[int, int]) -> None:
    assert replicas_and_shards(data, per_node) == shape


def test_shares_follow_the_speed_and_passes_the_memory_while_a_run_goes_on(
    alone: list[float], tmp_path: Path
) -> None:
    """Rank 1 is slow, and no memory is free: from step 2 passes are of 2 samples, after step 6 shares change, once."""
    source = client_file(tmp_path, samples=44, slow=0.08, short=True)
    run(source, tmp_path / "run", PLAN, 2, steps=8, checkpoint_every=100, balance=True)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    (short,) = events(tmp_path / "run", "memory_short")
    assert "1.0% of its memory left after step 2: passes of at most 2 samples instead of 4" in short["words"]
    (changed,) = events(tmp_path / "run", "balanced")
    assert "instead of 4, 4 after step 6; rank 1 needs" in changed["words"] and changed["rank"] == 1
    (used,) = events(tmp_path / "run", "memory")
    assert "GiB (the whole process)" in used["words"]
    assert all(line["memory_bytes"] > 2**20 for line in RunFolder(tmp_path / "run").steps())
    with pytest.raises(InputFault, match=r"--balance: does not work with shard fsdp"):
        run(source, tmp_path / "other", strategy(shard="fsdp"), 2, balance=True)


def test_what_does_not_fit_into_memory_goes_on_in_smaller_passes(alone: list[float], tmp_path: Path) -> None:
    """From step 4 a pass of more than one sample does not fit."""
    source = client_file(tmp_path, samples=44, room=[24, 1])
    summary = run(source, tmp_path / "run", PLAN, 2, steps=8)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    words = [event["words"] for event in events(tmp_path / "run", "out_of_memory")]
    assert [text.partition(":")[2] for text in words] == [
        f" goes on with passes of at most {samples} samples, the global batch as it was" for samples in (2, 1)
    ]
    assert summary.restarts == 2 and {line["samples"] for line in RunFolder(tmp_path / "run").steps()} == {
        8,
        4,
    }


@pytest.mark.repeated
def test_weights_that_a_step_leaves_out_are_replicated_not_sharded(
    alone: list[float], tmp_path: Path
) -> None:
    source = client_file(tmp_path, samples=44, spare=True)
    run(source, tmp_path / "run", strategy(optimizer="adamw", micro_batch=4), 2, steps=3)
    assert losses(tmp_path / "run") == pytest.approx(alone[:3], abs=EXACT)
    with pytest.raises(InputFault, match="may leave some out"):
        run(source, tmp_path / "other", strategy(shard="fsdp"), 2, steps=3)


@repeated("choices", [{"shard": "fsdp"}, {}], kept=1)
def test_bf16_is_near_fp32_and_as_exact_in_what_is_written(
    choices: dict[str, Any], alone: list[float], tmp_path: Path
) -> None:
    source = client_file(tmp_path, samples=44)
    plan = strategy(optimizer="adamw", precision="bf16", micro_batch=4, **choices)
    run(source, tmp_path / "run", plan, 2, steps=4)
    found = losses(tmp_path / "run")
    assert found == pytest.approx(alone[:4], rel=0.02) and found != pytest.approx(alone[:4], rel=1e-5)


def test_a_model_without_a_plan_for_tensors_is_not_cut_by_them(tmp_path: Path) -> None:
    with pytest.raises(InputFault, match=r"has no tensor_plan"):
        run("sample:diamond", tmp_path / "run", strategy(tensor=2), 2)
