"""What every rank reports to all others at the end of a step, in the one exchange that the loss needs anyway."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist

from torchsplit_core.values import InputFault


@dataclass(frozen=True, slots=True)
class RankReport:
    """The report of one rank on one step.

    `loss`: its part of the step's loss; `finite`: 1 if its gradients are finite. `seconds`: what it took for `samples`,
    without waits; `clock_s`: its clock. `peak_bytes`: the most memory so far; `free_share`: free share of its device's
    or machine's memory; `limit_bytes`: its device's memory, 0 if it is not the rank's own. Of `checkpoint_requested` (1
    if a checkpoint is requested) and `move_s` (what a move of blocks would take) rank 0's value counts. `blocks_s`: for
    a pipeline whose blocks may move, seconds of a micro-batch in each block, 0 in those of other ranks, and in the
    loss.
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
    """The reports of all ranks, in rank order; equal on every rank, so that all decide alike."""
    if dist.get_world_size() == 1:
        return [report]
    numbers = [getattr(report, name) for name in SCALARS]
    packed = torch.tensor([*numbers, *report.blocks_s], dtype=torch.float64)
    gathered = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, packed, group=group)
    return [_unpack(values.tolist()) for values in gathered]


def _unpack(packed: list[float]) -> RankReport:
    count = len(SCALARS)
    return RankReport(**dict(zip(SCALARS, packed[:count], strict=True)), blocks_s=tuple(packed[count:]))


def find_not_finite(reports: Sequence[RankReport]) -> tuple[str, list[int]] | None:
    """What is not finite, `loss` or else `gradient`, and on which ranks; None if all are finite."""
    losses = [rank for rank, report in enumerate(reports) if not math.isfinite(report.loss)]
    gradients = [rank for rank, report in enumerate(reports) if not report.finite]
    if losses or gradients:
        return ("loss", losses) if losses else ("gradient", gradients)
    return None


def not_finite_fault(
    what: str, ranks: Sequence[int], value: float, step: int, checkpoint_steps: Sequence[int]
) -> tuple[str, InputFault]:
    """The words of the event, and the fault, of a step whose loss or gradient is not finite on these ranks."""
    where = f"step {step}, rank {', '.join(map(str, ranks))}"
    last = (
        f"the checkpoint of step {checkpoint_steps[-1]} is kept"
        if checkpoint_steps
        else "there is no checkpoint yet"
    )
    fault = InputFault(
        f"the {what} of {where}",
        f"is {value if what == 'loss' else 'nan or inf'}; nothing of that step was taken, and {last}",
        "Lower the learning rate, look at the samples of that step, or choose another precision.",
    )
    return f"the {what} of {where} is not a finite number; {last}", fault
