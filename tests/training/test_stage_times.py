"""Pipelines: the losses of one process, checkpoints that any number of processes reads, and what is no chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sample_models import load
from tests.support.seeds import repeated
from tests.support.training.runs import client_file, events, losses, losses_alone, run, strategy
from torchsplit_core.tracing.export_inputs import TRACED_BATCH
from torchsplit_core.training import RunFolder
from torchsplit_core.training.monitor import RunReader
from torchsplit_core.training.pipeline.split_program import partition_stages, split_model
from torchsplit_core.training.pipeline.stage_batches import micro_batch_size
from torchsplit_core.values import InputFault

assert torch.distributed.is_available()
EXACT = 1e-6
SAMPLES = 44
"""In steps of 8: the sixth step of a pass has 4."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process that takes each step in one pass."""
    return losses_alone(tmp_path_factory.mktemp("alone_unstaged"), samples=SAMPLES, steps=8)


DIVIDED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "data ranks with 6 and 2 samples, in passes of 2 and 1": (
        4, {"pipeline": 2, "micro_batch": 2}, {"shares": (3.0, 1.0)},
    ),
    "two chunks a stage, recomputed": (
        2, {"pipeline": 2, "interleave": 2, "micro_batch": 2, "recompute": "full"}, {},
    ),
}  # fmt: skip


@repeated("name", DIVIDED, kept=0)
def test_a_pipeline_has_the_losses_of_one_process(name: str, alone: list[float], tmp_path: Path) -> None:
    processes, choices, options = DIVIDED[name]
    source = client_file(tmp_path, samples=SAMPLES, blocks=4)
    plan = strategy(optimizer="adamw", **choices)
    run(source, tmp_path / "run", plan, processes, steps=8, checkpoint_every=100, **options)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    # A processor's clock costs next to nothing, so the seconds of blocks are shown whether or not blocks may move.
    seconds = [each for rank in RunReader(tmp_path / "run").view().ranks for each in rank.blocks_s.items()]
    assert {name for name, _ in seconds} == {f"blocks.{number}" for number in range(4)}
    assert all(seconds_s is not None and seconds_s > 0 for _, seconds_s in seconds)


@pytest.mark.repeated
def test_a_killed_rank_of_a_pipeline_is_started_again(alone: list[float], tmp_path: Path) -> None:
    """Both stages fetch sample 28 in step 4, the first for its inputs, the last for its targets: one of them dies."""
    source = client_file(tmp_path, samples=SAMPLES, blocks=4, kill={"28": "rank"})
    plan = strategy(optimizer="adamw", pipeline=2, micro_batch=4)
    summary = run(source, tmp_path / "run", plan, 2, steps=8)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    assert summary.restarts == 1 and len(events(tmp_path / "run", "rank_lost")) == 1
    started = events(tmp_path / "run", "started")[0]["words"]
    assert "2 stages of blocks: blocks.0 to blocks.1, blocks.2 to blocks.3" in started


@pytest.mark.repeated
def test_a_checkpoint_of_a_sharded_pipeline_is_read_by_fewer_and_by_no_pipeline(
    alone: list[float], tmp_path: Path
) -> None:
    """Four processes in two stages, then three, which two stages do not divide."""
    source = client_file(tmp_path, samples=SAMPLES, blocks=4)
    plan = strategy(optimizer="adamw", pipeline=2, micro_batch=2, shard="fsdp")
    run(source, tmp_path / "run", plan, 4, steps=4)
    run(source, tmp_path / "run", plan, 3, steps=8, resume=True)
    assert losses(tmp_path / "run") == pytest.approx(alone, abs=EXACT)
    assert [line["world_size"] for line in RunFolder(tmp_path / "run").steps()] == [4] * 4 + [3] * 4
    (told,) = events(tmp_path / "run", "scaled")
    assert told["words"] == "1 of the strategy's 2 stages, the most that divide 3 processes"


class Looped(nn.Module):
    """Blocks in a row; `again`: one of them runs twice. `tied`: two have one weight. `lone`: a weight nobody reads."""

    def __init__(self, count: int = 3, again: bool = False, tied: bool = False, lone: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
        self.lone = nn.Linear(2, 2) if lone else None
        self.again = again
        if tied:
            self.blocks[-1].weight = self.blocks[0].weight

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        first = x
        for block in self.blocks:
            x = torch.tanh(block(x)) * mask
        return (self.blocks[0](x) if self.again else x) + first


def batch(count: int) -> tuple[Tensor, ...]:
    return torch.ones(count, 4), torch.ones(count, 4)


def test_what_later_blocks_read_is_handed_on_and_inputs_are_not() -> None:
    chain = split_model(Looped(), batch)
    assert chain.blocks.names == ("blocks.0", "blocks.1", "blocks.2") and chain.inputs == ("x", "mask")
    assert [len(chain.boundary_tensors(place)) for place in range(4)] == [0, 1, 1, 1]
    assert all(chain.values[name].trains for name in chain.boundary_tensors(1))
    assert partition_stages(chain, 2, (1, 2)) == (range(1), range(1, 3))
    assert [len(one) for one in partition_stages(chain, 3)] == [1, 1, 1]
    # What is between two blocks is the later one's.
    more = split_model(Looped(count=4), batch).blocks
    assert more.kind(0) != more.kind(1) == more.kind(2) != more.kind(3)
    assert chain.blocks.weight_bytes == (80.0, 80.0, 80.0)
    assert chain.blocks.flops == (2 * 4 * 4 * TRACED_BATCH,) * 3
    assert chain.blocks.max_bytes(1, 2) == 4 * 80 + 2 * chain.blocks.activation_bytes[1] > 320
    for stages, layers, words in (
        (4, (), "3 blocks for 4 stages"),
        (2, (2, 2), r"are 2 \+ 2, but .* 3 blocks"),
    ):
        with pytest.raises(InputFault, match=words):
            partition_stages(chain, stages, layers)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Looped(again=True), "comes back to blocks.0"),
        (Looped(tied=True), r"blocks\.0\.weight and blocks\.2\.weight are one weight"),
        (Looped(count=1), "no repeated blocks"),
    ],
    ids=["again", "tied", "one block"],
)
def test_what_is_no_chain_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(InputFault, match=words):
        split_model(model, batch)


def test_a_path_that_depends_on_data_is_refused() -> None:
    client: Any = load("cond", "small")
    with pytest.raises(
        InputFault, match=r"into stages: (it has no repeated blocks|its path depends on data)"
    ):
        split_model(client.get_model().train(), client.get_example_inputs)


def test_passes_of_a_pipeline_are_of_one_size() -> None:
    assert [micro_batch_size(samples, 4) for samples in (8, 6, 7, 3)] == [4, 3, 1, 3]
