"""What every rank tells all others at the end of a step, in the one exchange that the loss needs anyway."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class RankReport:
    """Of one rank and step.

    `loss`: its part of the step's, `finite`: 1 where its gradients are. `seconds` in which it did `samples` without
    waiting for others, `clock_s`: of its clock. `peak_bytes`: the most memory so far, `free_share`: of its device's
    memory, or of its machine's, `limit_bytes`: its device's memory, 0 where it is not the rank's own.
    `checkpoint_requested`: 1 where the run is asked for a checkpoint, `move_s`: what a move of blocks would take,
    both of rank 0. `blocks_s`: of a pipeline whose blocks may move, seconds of a micro-batch in each block, 0 in
    those of other ranks, and in the loss.
    """

    loss: float
    finite: float
    seconds: float
    samples: float
    clock_s: float
    peak_bytes: float
    free_share: float
    checkpoint_requested: float = 0.0
    limit_bytes: float = 0.0
    move_s: float = 0.0
    blocks_s: tuple[float, ...] = ()


SCALARS = [item.name for item in fields(RankReport) if item.name != "blocks_s"]


def all_gather_reports(report: RankReport, group: dist.ProcessGroup) -> list[RankReport]:
    """Of every rank, in their order; the same on all of them, so that all decide alike."""
    numbers = [getattr(report, name) for name in SCALARS]
    packed = torch.tensor([*numbers, *report.blocks_s], dtype=torch.float64)
    gathered = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, packed, group=group)
    return [_unpack(values.tolist()) for values in gathered]


def _unpack(packed: list[float]) -> RankReport:
    count = len(SCALARS)
    return RankReport(**dict(zip(SCALARS, packed[:count], strict=True)), blocks_s=tuple(packed[count:]))


def find_not_finite(reports: Sequence[RankReport]) -> tuple[str, list[int]] | None:
    """Whose loss is no finite number, else whose gradients are not: which of both, and the ranks."""
    losses = [rank for rank, report in enumerate(reports) if not math.isfinite(report.loss)]
    gradients = [rank for rank, report in enumerate(reports) if not report.finite]
    if losses or gradients:
        return ("loss", losses) if losses else ("gradient", gradients)
    return None
