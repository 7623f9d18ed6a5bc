"""Memory of a run: what it has used, what is free, and what is reduced when it runs short."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import Recompute

MIN_FREE_SHARE = 0.05
"""Share of the device's or the machine's memory: with less free than this, micro-batches become smaller."""
STEPS_BETWEEN = 10
"""Steps after which the effect of a smaller micro-batch shows."""
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The choices that save memory: samples of a micro-batch first, then recomputation."""

    micro_batch: int
    recompute: Recompute

    def reduced(self) -> MemoryConfig | None:
        """The next smaller configuration: half the samples of a micro-batch, then full recomputation, then None."""
        if self.micro_batch > 1:
            return replace(self, micro_batch=-(-self.micro_batch // 2))
        return replace(self, recompute="full") if self.recompute != "full" else None

    def describe(self) -> str:
        """As text for an event."""
        recompute_note = ", each layer computed again" if self.recompute == "full" else ""
        return f"passes of at most {self.micro_batch} samples{recompute_note}"


def memory_config_of(strategy: RunStrategy) -> MemoryConfig:
    """The configuration of a strategy; a micro-batch never has more samples than a rank has in a step."""
    choices = strategy.choices
    most = -(-strategy.job.global_batch // choices.data)
    return MemoryConfig(min(choices.micro_batch, most), choices.recompute)


class MemoryGuard:
    """Decides when micro-batches must become smaller, before memory runs out."""

    def __init__(self) -> None:
        self._changed = -STEPS_BETWEEN

    def propose(self, step: int, free_shares: Sequence[float], micro_batch: int) -> int | None:
        """Samples of a micro-batch from the next step on if a rank is short of memory; None: no change."""
        if min(free_shares) >= MIN_FREE_SHARE or micro_batch == 1 or step - self._changed < STEPS_BETWEEN:
            return None
        self._changed = step
        return -(-micro_batch // 2)


def peak_bytes(device: torch.device) -> int:
    """Peak bytes of tensors on a GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def limit_bytes(device: torch.device) -> int:
    """Bytes of a GPU's memory; 0 on a CPU, whose ranks share the machine's."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else 0


def free_share(device: torch.device) -> float:
    """Free share of the GPU's memory, torch's cache included; on a CPU of the machine's or its container's memory."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float((free + cached) / total)
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    share: float = _kib(lines["MemAvailable"]) / _kib(lines["MemTotal"])
    with contextlib.suppress(OSError, ValueError, KeyError):  # no cgroup v2, or "max"
        limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
        stat = dict(
            line.split() for line in (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
        )
        share = min(share, 1 - (used - int(stat["inactive_file"])) / limit)
    return share


def _kib(text: str) -> int:
    return int(text.split()[0])
