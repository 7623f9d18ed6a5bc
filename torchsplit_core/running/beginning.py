"""What the first rank does before the steps of a start: which checkpoint is gone on from, and what is said of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torchsplit_core.running.checkpoints import Checkpoints, Manifest
from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.saving import check_model
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.running.loop import TrainingRun

FIXED = ("source", "global_batch", "seed", "shuffled", "samples")
"""What a run goes on with as it began."""


def facts_of(run: TrainingRun) -> dict[str, Any]:
    """What run.json says."""
    return {
        "source": run.name,
        "global_batch": run.strategy.job.global_batch,
        "seed": run.options.seed,
        "steps": run.last_step,
        "shuffled": run.feed.shuffle,
        "samples": run.feed.samples,
        "processes": run.world_size,
        "nodes": run.nodes,
        "choices": asdict(run.strategy.choices),
        "precision": run.strategy.job.precision,
        "optimizer": type(run.optimizer).__name__,
        "device": str(run.device),
        "backend": str(dist.get_backend()),
        "torch_version": torch.__version__,
    }


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of one start. `facts` is what run.json says, `notes` what its first event says beside the step."""

    folder: RunFolder
    checkpoints: Checkpoints
    digest: str
    facts: dict[str, Any]
    notes: tuple[str, ...]

    def newest(self) -> tuple[Path, Manifest] | InputFault | None:
        """The checkpoint to go on from, or why there is none that will do."""
        try:
            before = self.folder.facts().get("nodes")
            self.folder.keep_facts(self.facts, FIXED)
            self._tell_of_nodes(before)
            found = self.checkpoints.newest(lambda words: self.folder.tell("checkpoint_damaged", words, 0))
            if found:
                path, manifest = found
                check_model(path, manifest, self.facts["source"], self.digest)
        except InputFault as fault:
            return fault
        return found

    def _tell_of_nodes(self, before: list[str] | None) -> None:
        """Which nodes have come and gone since the last start."""
        nodes = self.facts["nodes"]
        if before is None or set(before) == set(nodes):
            return
        words = [f"{name} has come" for name in nodes if name not in before]
        words += [f"{name} is gone" for name in before if name not in nodes]
        now = f"goes on with ranks 0 to {self.facts['processes'] - 1} on {', '.join(nodes)}"
        self.folder.tell("scaled", f"{now}: {', '.join(words)}; the global batch as it was", 0)

    def at(self, step: int) -> None:
        """The steps after `step` are done now."""
        self.checkpoints.sweep(step)
        again = self.folder.forget_steps_after(step)
        words = f"goes on after step {step}" if step else "begins at step 1"
        if again:
            words += f"; {again} steps since then are done again"
        words += f" with {self.facts['processes']} processes"
        self.folder.tell("resumed" if step else "started", "; ".join((words, *self.notes)), 0)
