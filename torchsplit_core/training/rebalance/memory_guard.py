"""Memory of a run: what it has used, what is free, and what it goes on with where it is short."""

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
"""Of the device's or the machine's memory: with less free than this, passes become smaller."""
STEPS_BETWEEN = 10
"""Steps in which a smaller pass shows what it brings."""
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """What of a strategy gives way to memory: samples of a pass, then what is computed again."""

    micro_batch: int
    recompute: Recompute

    def reduced(self) -> MemoryConfig | None:
        """The next one that needs less: passes of half as many samples, then all layers again; None: there is none."""
        if self.micro_batch > 1:
            return replace(self, micro_batch=-(-self.micro_batch // 2))
        return replace(self, recompute="full") if self.recompute != "full" else None

    def describe(self) -> str:
        """As an event says it."""
        recompute_note = ", each layer computed again" if self.recompute == "full" else ""
        return f"passes of at most {self.micro_batch} samples{recompute_note}"


def memory_config_of(strategy: RunStrategy) -> MemoryConfig:
    """Of a strategy: a pass never has more samples than a rank has in a step."""
    choices = strategy.choices
    most = -(-strategy.job.global_batch // choices.data)
    return MemoryConfig(min(choices.micro_batch, most), choices.recompute)


class MemoryGuard:
    """Says when passes must become smaller, before memory runs out."""

    def __init__(self) -> None:
        self._changed = -STEPS_BETWEEN

    def propose(self, step: int, free_shares: Sequence[float], micro_batch: int) -> int | None:
        """Samples of a pass from the next step on, where a rank is short of memory; None: as they are."""
        if min(free_shares) >= MIN_FREE_SHARE or micro_batch == 1 or step - self._changed < STEPS_BETWEEN:
            return None
        self._changed = step
        return -(-micro_batch // 2)


def peak_bytes(device: torch.device) -> int:
    """The most that tensors took on a GPU, or this process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def limit_bytes(device: torch.device) -> int:
    """The memory of a GPU; 0 of a CPU, whose ranks share the machine's."""
    return int(torch.cuda.mem_get_info(device)[1]) if device.type == "cuda" else 0


def free_share(device: torch.device) -> float:
    """Of the GPU's memory, what torch keeps for later counted as free; of the machine's or its container's on a CPU."""
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
