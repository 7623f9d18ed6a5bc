"""A move of blocks from one start of the processes to the next: what it would take, its checkpoint, what it took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from torchsplit_core.training.async_checkpoint import AsyncCheckpointer
from torchsplit_core.training.rebalance.batch_balancer import MIN_INTERVAL_S
from torchsplit_core.training.rebalance.overrides import PendingMove, read_overrides, save_overrides
from torchsplit_core.training.rebalance.rebalancer import Rebalancer
from torchsplit_core.training.rebalance.stage_balancer import StageMove
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault


def estimated_s(start_s: float, checkpoint_s: float) -> float:
    """What a move would take before one was measured: a start as the last one, and a checkpoint."""
    return start_s + checkpoint_s


class StageMigration:
    """Of one start, whose processes were begun at `began_s` (seconds of the epoch) and go on now.

    The first rank says what a move takes, when the last one was, and how it went.
    """

    def __init__(
        self,
        folder: RunFolder,
        rank: int,
        began_s: float,
        rebalancer: Rebalancer,
        checkpointer: AsyncCheckpointer,
    ) -> None:
        self.folder, self.rank, self.rebalancer, self.checkpointer = folder, rank, rebalancer, checkpointer
        self._start_s = time.time() - began_s
        self._attempted_s: float | None = None
        self._last_duration_s: float | None = None
        if rank == 0:
            self._complete_last()

    def _complete_last(self) -> None:
        """Tell, once, of a move that this start ends."""
        overrides = read_overrides(self.folder.path)
        self._attempted_s, self._last_duration_s = overrides.moved_s, overrides.move_s
        if overrides.under_way is None:
            return
        self._last_duration_s = time.time() - overrides.under_way.began_s
        words = (
            f"moved {overrides.under_way.what} in {self._last_duration_s:.3g} s, of which "
            f"{overrides.under_way.written_s:.3g} s"
        )
        gain = (
            f"a step of {overrides.under_way.predicted_s:.3g} s instead of "
            f"{overrides.under_way.step_s:.3g} s is predicted"
        )
        self.folder.log_event("layers_moved", f"{words} went into the checkpoint; {gain}", 0)
        self.rebalancer.completed_move = overrides.under_way
        # At worst it is told twice.
        with contextlib.suppress(InputFault):
            save_overrides(self.folder.path, replace(overrides, move_s=self._last_duration_s, under_way=None))

    def estimated_seconds(self) -> float:
        """What a move would take, said by the first rank; infinite while the last is less than a minute ago."""
        if self._attempted_s is not None and time.time() - self._attempted_s < MIN_INTERVAL_S:
            return float("inf")
        return self._last_duration_s or estimated_s(self._start_s, self.checkpointer.last_duration_s)

    def start_pending(self, step: int, save: Callable[[], None]) -> bool:
        """Whether blocks move: then the step's checkpoint is complete, and the next start begins with them.

        All ranks call it after each step; `save` begins a checkpoint.
        """
        move, began_s = self.rebalancer.pending_move, time.time()
        if move is None:
            return False
        if self.checkpointer.newest != step:
            save()
        reason = self.checkpointer.wait()
        if self.rank == 0 and reason is None:
            reason = self._save_move(move, began_s)
        reason = self.checkpointer.broadcast_reason(reason)
        self._attempted_s = time.time()
        if reason and self.rank == 0:
            self.folder.log_event("layers_stay", f"does not move {move.what}: {reason}", 0)
        return reason is None

    def _save_move(self, move: StageMove, began_s: float) -> str | None:
        """Have the next start make it; why it cannot, None where it can."""
        now = time.time()
        under_way = PendingMove(move.what, began_s, now - began_s, move.step_s, move.predicted_s)
        overrides = replace(
            read_overrides(self.folder.path), layers=move.layers, moved_s=now, under_way=under_way
        )
        try:
            save_overrides(self.folder.path, overrides)
        except InputFault as fault:
            return str(fault)
        return None
