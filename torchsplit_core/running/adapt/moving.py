"""A move of blocks from one start of the processes to the next: what it would take, its checkpoint, what it took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from torchsplit_core.running.adapt.changes import Changes
from torchsplit_core.running.adapt.kept import UnderWay, keep, read_kept
from torchsplit_core.running.adapt.layers import Move
from torchsplit_core.running.adapt.speed import LEAST_S
from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.saving import Saver
from torchsplit_core.values import InputFault


def estimated_s(start_s: float, checkpoint_s: float) -> float:
    """What a move would take before one was measured: a start as the last one, and a checkpoint."""
    return start_s + checkpoint_s


class Moving:
    """Of one start, whose processes were begun at `began_s` (seconds of the epoch) and go on now.

    The first rank says what a move takes, when the last one was, and how it went.
    """

    def __init__(self, folder: RunFolder, rank: int, began_s: float, changes: Changes, saver: Saver) -> None:
        self.folder, self.rank, self.changes, self.saver = folder, rank, changes, saver
        self._start_s = time.time() - began_s
        self._tried_s: float | None = None
        self._took_s: float | None = None
        if rank == 0:
            self._end_last()

    def _end_last(self) -> None:
        """Tell, once, of a move that this start ends."""
        kept = read_kept(self.folder.path)
        self._tried_s, self._took_s = kept.moved_s, kept.move_s
        if kept.under_way is None:
            return
        self._took_s = time.time() - kept.under_way.began_s
        words = (
            f"moved {kept.under_way.what} in {self._took_s:.3g} s, of which {kept.under_way.written_s:.3g} s"
        )
        gain = f"a step of {kept.under_way.predicted_s:.3g} s instead of {kept.under_way.step_s:.3g} s is predicted"
        self.folder.tell("layers_moved", f"{words} went into the checkpoint; {gain}", 0)
        self.changes.ended = kept.under_way
        # At worst it is told twice.
        with contextlib.suppress(InputFault):
            keep(self.folder.path, replace(kept, move_s=self._took_s, under_way=None))

    def seconds(self) -> float:
        """What a move would take, said by the first rank; infinite while the last is less than a minute ago."""
        if self._tried_s is not None and time.time() - self._tried_s < LEAST_S:
            return float("inf")
        return self._took_s or estimated_s(self._start_s, self.saver.took_s)

    def begins(self, step: int, save: Callable[[], None]) -> bool:
        """Whether blocks move: then the step's checkpoint is complete, and the next start begins with them.

        All ranks call it after each step; `save` begins a checkpoint.
        """
        move, began_s = self.changes.move, time.time()
        if move is None:
            return False
        if self.saver.newest != step:
            save()
        reason = self.saver.wait()
        if self.rank == 0 and reason is None:
            reason = self._keep(move, began_s)
        reason = self.saver.agreed(reason)
        self._tried_s = time.time()
        if reason and self.rank == 0:
            self.folder.tell("layers_stay", f"does not move {move.what}: {reason}", 0)
        return reason is None

    def _keep(self, move: Move, began_s: float) -> str | None:
        """Have the next start make it; why it cannot, None where it can."""
        now = time.time()
        under_way = UnderWay(move.what, began_s, now - began_s, move.step_s, move.predicted_s)
        kept = replace(read_kept(self.folder.path), layers=move.layers, moved_s=now, under_way=under_way)
        try:
            keep(self.folder.path, kept)
        except InputFault as fault:
            return str(fault)
        return None
