"""A move of blocks from one attempt to the next: its estimated seconds, its checkpoint, its measured seconds."""

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
    """Seconds of a move before one was measured: a start like the last one, and a checkpoint."""
    return start_s + checkpoint_s


class StageMigration:
    """The moves of one attempt, whose processes started at `began_s` (seconds since the epoch) and now begin to train.

    The first rank knows what a move takes, when the last one was, and how it went.
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
        """Log, once, a move that this attempt completes."""
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
        # At worst it is logged twice.
        with contextlib.suppress(InputFault):
            save_overrides(self.folder.path, replace(overrides, move_s=self._last_duration_s, under_way=None))

    def estimated_seconds(self) -> float:
        """Seconds that a move would take (rank 0's value counts); infinite within MIN_INTERVAL_S of the last one."""
        if self._attempted_s is not None and time.time() - self._attempted_s < MIN_INTERVAL_S:
            return float("inf")
        return self._last_duration_s or estimated_s(self._start_s, self.checkpointer.last_duration_s)

    def start_pending(self, step: int, save: Callable[[], None]) -> bool:
        """Whether blocks move: then the step's checkpoint is complete, and the next attempt starts with the new stages.

        All ranks call it after each step; `save` starts a checkpoint.
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
        """Store the move for the next attempt; why that failed, None if it did not."""
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
