"""What a history holds: jobs, samples of GPUs, and the events that show on which days it was kept."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True)
class GpuJob:
    """A job that asked for GPUs; times in seconds since 1970 (UTC).

    `start` None: pending; `end` None: not ended yet. `tasks`: pending tasks of an array that one row stands for.
    `devices`: GPUs or slices by type ("" where none is named); None: the history does not say.
    """

    job_id: str
    raw_id: str
    submit: float
    start: float | None
    end: float | None
    tasks: int
    labels: dict[str, str]
    devices: tuple[tuple[str, int], ...] | None

    @property
    def device_count(self) -> int | None:
        return None if self.devices is None else sum(count for _, count in self.devices)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A sample of a GPU or slice. Shares are 0 to 1; None: the history does not say.

    `utilisation`: share of time in which a kernel ran; `sm_active`: share of time in which an SM had a warp, mean over
    SMs; `job_id`: the job that ran there, "" where unknown.
    """

    moment: float
    device: tuple[str, str]
    utilisation: float | None
    sm_active: float | None
    memory_gib: float | None
    job_id: str


@dataclass(frozen=True, slots=True)
class JobHistory:
    """All files together, jobs and samples each once. `events`: hours since 1970 in which any job was submitted,
    started or ended, jobs without GPUs included."""

    jobs: tuple[GpuJob, ...]
    samples: tuple[GpuSample, ...]
    events: frozenset[int]
    notes: tuple[str, ...]
