"""What every rank tells all others at the end of a step, in the one exchange that the loss needs anyway."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Told:
    """Of one rank and step.

    `loss`: its part of the step's, `finite`: 1 where its gradients are. `seconds` in which it did `samples` without
    waiting for others, `clock_s`: of its clock. `peak_bytes`: the most memory so far, `free_share`: of its device's
    memory, or of its machine's, `limit_bytes`: its device's memory, 0 where it is not the rank's own. `asked`: 1 where
    the run is asked for a checkpoint, `move_s`: what a move of blocks would take, both of rank 0. `blocks_s`: of a
    pipeline whose blocks may move, seconds of a micro-batch in each block, 0 in those of other ranks, and in the loss.
    """

    loss: float
    finite: float
    seconds: float
    samples: float
    clock_s: float
    peak_bytes: float
    free_share: float
    asked: float = 0.0
    limit_bytes: float = 0.0
    move_s: float = 0.0
    blocks_s: tuple[float, ...] = ()


NUMBERS = [one.name for one in fields(Told) if one.name != "blocks_s"]


def told_by_all(own: Told, group: dist.ProcessGroup) -> list[Told]:
    """Of every rank, in their order; the same on all of them, so that all decide alike."""
    numbers = [getattr(own, name) for name in NUMBERS]
    sent = torch.tensor([*numbers, *own.blocks_s], dtype=torch.float64)
    heard = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(heard, sent, group=group)
    return [_told(one.tolist()) for one in heard]


def _told(sent: list[float]) -> Told:
    count = len(NUMBERS)
    return Told(**dict(zip(NUMBERS, sent[:count], strict=True)), blocks_s=tuple(sent[count:]))


def not_finite(told: Sequence[Told]) -> tuple[str, list[int]] | None:
    """Whose loss is no finite number, else whose gradients are not: which of both, and the ranks."""
    losses = [rank for rank, one in enumerate(told) if not math.isfinite(one.loss)]
    gradients = [rank for rank, one in enumerate(told) if not one.finite]
    if losses or gradients:
        return ("loss", losses) if losses else ("gradient", gradients)
    return None
