"""Resume an attempt: the first rank chooses the checkpoint for all ranks and logs where the run goes on."""

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

FIXED = (
    "source", "global_batch", "seed", "shuffled", "samples", "schedule", "warmup_steps", "schedule_steps",
)  # fmt: skip
"""Facts that must not change when a run is resumed."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Resumes one attempt. `facts`: the contents of run.json; `notes`: what the first event says besides the step."""

    folder: RunFolder
    checkpoints: Checkpoints
    digest: str
    facts: dict[str, Any]
    notes: tuple[str, ...]

    def resume(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup, random_rank: int
    ) -> tuple[int, dict[str, str]]:
        """Load the newest complete checkpoint, if any; returns the step to go on from, and what else the run had saved
        there. Raises InputFault on every rank.

        `random_rank`: the rank whose random state this one uses, as for `load_checkpoint`.
        """
        first = dist.get_rank() == 0
        checkpoint: list[Any] = [self.newest_checkpoint() if first else None]
        dist.broadcast_object_list(checkpoint, src=0, group=group)
        if isinstance(checkpoint[0], InputFault):
            raise checkpoint[0]
        step, run_state = 0, dict[str, str]()
        if checkpoint[0] is not None:
            path, manifest = checkpoint[0]
            run_state = load_checkpoint(path, manifest, model, optimizer, random_rank)
            step = int(manifest.step)
        if first:
            self.restart_at(step)
        return step, run_state

    def newest_checkpoint(self) -> tuple[Path, Manifest] | InputFault | None:
        """The checkpoint to resume from (None: start at step 1), or the fault that prevents resuming."""
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
        """Log which nodes have joined or left since the last attempt."""
        nodes = self.facts["nodes"]
        if before is None or set(before) == set(nodes):
            return
        words = [f"{name} has come" for name in nodes if name not in before]
        words += [f"{name} is gone" for name in before if name not in nodes]
        now = f"goes on with ranks 0 to {self.facts['processes'] - 1} on {', '.join(nodes)}"
        self.folder.log_event("scaled", f"{now}: {', '.join(words)}; the global batch as it was", 0)

    def restart_at(self, step: int) -> None:
        """Discard what lies after `step`, since those steps run now, and log where the run goes on."""
        self.checkpoints.discard_after(step)
        repeated = self.folder.truncate_steps_after(step)
        words = f"goes on after step {step}" if step else "begins at step 1"
        if repeated:
            words += f"; {repeated} steps since then are done again"
        words += f" with {self.facts['processes']} processes"
        self.folder.log_event("resumed" if step else "started", "; ".join((words, *self.notes)), 0)
