"""What run.json says of a run, and what its first event does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torchsplit_core.training.division.tensor import divides_sequences

if TYPE_CHECKING:
    from torchsplit_core.training.division.context import ContextParallel


def facts_of(run: Any, schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of run.json of a `TrainingRun`; `schedule`: what it says of the schedule."""
    strategy, options = run.strategy, run.options
    return {
        "source": run.name,
        "global_batch": strategy.job.global_batch,
        "seed": options.seed,
        "steps": run.last_step,
        "shuffled": run.batches.shuffle,
        "samples": run.batches.samples or None,
        "processes": run.world_size,
        "nodes": run.nodes,
        "choices": asdict(strategy.choices),
        "precision": strategy.job.precision,
        "optimizer": type(run.optimizer).__name__,
        **schedule,
        "clip_norm": options.update.clip_norm,
        "device": str(run.device),
        "backend": str(dist.get_backend()),
        "torch_version": torch.__version__,
    }


def division_notes(
    run: Any, context: ContextParallel | None, tensor_plan: Mapping[str, str] | None
) -> tuple[str, ...]:
    """Notes of the first event of a `TrainingRun` on how its model is divided."""
    choices = run.strategy.choices
    notes: tuple[str, ...] = (context.describe(),) if context else ()
    if run.pipeline:
        stages = ", ".join(run.pipeline.describe_stages())
        notes += (f"{choices.pipeline} stages of blocks: {stages}",)
    if choices.tensor > 1 and choices.sequence_parallel and not divides_sequences(choices, tensor_plan):
        notes += (
            "without sequence parallelism: the results are the same, activations take more than was reckoned",
        )
    return notes
