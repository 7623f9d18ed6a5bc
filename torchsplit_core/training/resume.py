"""Before the steps of a start: which checkpoint is gone on from, by the first rank's word, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from torchsplit_core.checkpoints.store import Checkpoints, Manifest
from torchsplit_core.training.async_checkpoint import check_model, load_checkpoint
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault

FIXED = ("source", "global_batch", "seed", "shuffled", "samples")
"""What a run goes on with as it began."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Of one start. `facts` is what run.json says, `notes` what its first event says beside the step."""

    folder: RunFolder
    checkpoints: Checkpoints
    digest: str
    facts: dict[str, Any]
    notes: tuple[str, ...]

    def resume(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, random_rank: int
    ) -> int:
        """Load the newest complete checkpoint, if any; the step to go on from. Raises InputFault on every rank.

        `random_rank`: whose random numbers this one has, as for `load_checkpoint`.
        """
        first = dist.get_rank() == 0
        checkpoint: list[Any] = [self.newest_checkpoint() if first else None]
        dist.broadcast_object_list(checkpoint, src=0, group=group)
        if isinstance(checkpoint[0], InputFault):
            raise checkpoint[0]
        step = 0
        if checkpoint[0] is not None:
            path, manifest = checkpoint[0]
            load_checkpoint(path, manifest, model, optimizer, random_rank)
            step = int(manifest.step)
        if first:
            self.restart_at(step)
        return step

    def newest_checkpoint(self) -> tuple[Path, Manifest] | InputFault | None:
        """The checkpoint to go on from, or why there is none that will do."""
        try:
            before = self.folder.facts().get("nodes")
            self.folder.write_facts(self.facts, FIXED)
            self._log_node_changes(before)
            checkpoint = self.checkpoints.newest(
                lambda words: self.folder.log_event("checkpoint_damaged", words, 0)
            )
            if checkpoint:
                path, manifest = checkpoint
                check_model(path, manifest, self.facts["source"], self.digest)
        except InputFault as fault:
            return fault
        return checkpoint

    def _log_node_changes(self, before: list[str] | None) -> None:
        """Which nodes have come and gone since the last start."""
        nodes = self.facts["nodes"]
        if before is None or set(before) == set(nodes):
            return
        words = [f"{name} has come" for name in nodes if name not in before]
        words += [f"{name} is gone" for name in before if name not in nodes]
        now = f"goes on with ranks 0 to {self.facts['processes'] - 1} on {', '.join(nodes)}"
        self.folder.log_event("scaled", f"{now}: {', '.join(words)}; the global batch as it was", 0)

    def restart_at(self, step: int) -> None:
        """The steps after `step` are done now."""
        self.checkpoints.discard_after(step)
        repeated = self.folder.truncate_steps_after(step)
        words = f"goes on after step {step}" if step else "begins at step 1"
        if repeated:
            words += f"; {repeated} steps since then are done again"
        words += f" with {self.facts['processes']} processes"
        self.folder.log_event("resumed" if step else "started", "; ".join((words, *self.notes)), 0)
