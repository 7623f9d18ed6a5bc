"""What a model costs on a device: the profile contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Basis = Literal["measured", "emulated", "estimated"]


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One way to run one stage: device, slice, batch size, processes, and what it gives.

    `profile` is None for a whole GPU without MIG or a CPU. `low_rps` and `high_rps` bound
    the throughput (90 % interval); `memory_gib` is the peak of one instance.
    """

    stage: str
    gpu_type: str
    profile: str | None
    batch_size: int
    processes: int
    throughput_rps: float
    latency_ms: float
    low_rps: float | None
    high_rps: float | None
    memory_gib: float | None
    basis: Basis


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """One node's share of the model's time (shares add up to 1) and its bytes at the traced batch."""

    id: str
    time_share: float
    output_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything known of one model's cost; `environment` says where and with what it was measured."""

    source: str
    architecture_hash: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[ProfileRow, ...] = ()
    nodes: tuple[NodeProfile, ...] = ()
