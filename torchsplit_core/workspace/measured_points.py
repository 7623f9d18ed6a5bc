"""Measured points, stored between runs and shared by all workspaces of a store.

A point is addressed by all that it depends on: the model's architecture hash, the device and slice, the software and
the settings (dtype, mode of compilation, …). So a killed run continues where it stopped, and nothing is measured twice
unless requested.

Points under an architecture hash of the previous scheme stay, and are shown as old: that hash ignored arguments, so
they may be another model's. They are never reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import platform
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from typing import IO

from torchsplit_core.profiling.points import MeasuredPoint, MeasurementSettings
from torchsplit_core.values import Device, Progress
from torchsplit_core.workspace.job_slots import release_slot_meanwhile
from torchsplit_core.workspace.store import Store

METHOD_VERSION = 2
"""Increased when a change of the measuring makes older points incomparable: before 2 a run's time included the seeding
of random numbers, which takes longer than a small model."""
POLL_S = 0.5


def place_of(device: Device, settings: MeasurementSettings) -> str:
    """The address of everything measured on this device, with this software and these settings.

    It excludes the time budget, which only narrows a figure's interval.
    """
    facts = asdict(device) | {
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "method": METHOD_VERSION,
        "cuda_graphs": settings.cuda_graphs,
    }
    # Only if not the default: points measured before an option existed keep their address.
    defaults = MeasurementSettings()
    for name in ("dtype", "compile_mode", "repeats", "seed", "host_copies", "sequence_length"):
        if getattr(settings, name) != getattr(defaults, name):
            facts[name] = getattr(settings, name)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class PointStore:
    """The points at one address. `since` (Unix seconds) excludes earlier measurements."""

    def __init__(self, store: Store, device_key: str, since: float = 0.0) -> None:
        self.store, self.device_key, self.since = store, device_key, since

    def save(self, point: MeasuredPoint) -> None:
        """Store a point, replacing the one at its key; a figure also removes a failure there.

        A point that was stored before keeps its time.
        """
        with self.store.connect() as database:
            if point.kind == "batch":
                database.execute(
                    "DELETE FROM points WHERE place = ? AND architecture_hash = ? AND kind = 'failure' "
                    "AND batch_size = ?",
                    (self.device_key, point.architecture_hash, point.batch_size),
                )
            database.execute(
                "INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?)",
                (
                    self.device_key,
                    point.architecture_hash,
                    point.kind,
                    point.batch_size,
                    json.dumps(point.content),
                    time.time() if point.stored_at is None else point.stored_at,
                ),
            )

    def load(self, architecture_hash: str | None = None) -> tuple[MeasuredPoint, ...]:
        """The points of one model, or of all."""
        with self.store.connect() as database:
            rows = database.execute(
                "SELECT architecture_hash, kind, batch_size, content, kept FROM points "
                "WHERE place = ? AND kept >= ? AND (? IS NULL OR architecture_hash = ?) ORDER BY batch_size, kind",
                (self.device_key, self.since, architecture_hash, architecture_hash),
            ).fetchall()
        return tuple(
            MeasuredPoint(identity, kind, batch, json.loads(content), measured_at)
            for identity, kind, batch, content, measured_at in rows
        )


OLD_POINTS_TEXT = "old (measured under the earlier architecture hash)"
"""Text for points that are stored but never reused."""


def old_batch_sizes(points: PointStore, former_hash: str) -> tuple[int, ...]:
    """Batch sizes with figures under the previous scheme's hash of a graph."""
    return tuple(point.batch_size for point in points.load(former_hash) if point.kind == "batch")


@contextlib.contextmanager
def exclusive_measurement(store: Store, device: Device, progress: Progress) -> Iterator[None]:
    """Wait until no other measurement runs on the physical device: they would disturb each other."""
    name = re.sub(r"[^\w.-]", "_", device.physical)
    with store.lock_file(f"measure-{name}.lock") as lock:
        if not _try_lock(lock):
            # A job that waits for a device does no work: others may run.
            with release_slot_meanwhile():
                while not _try_lock(lock):
                    progress(0.0, f"queued: another measurement runs on {device.name}")
                    time.sleep(POLL_S)
        yield


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
