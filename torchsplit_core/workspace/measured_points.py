"""What was measured, point by point, kept between runs and shared by all workspaces of a store.

A point is addressed by what it depends on: the model's architecture hash, the device and slice, the
software and the settings, dtype and mode of compilation among them. So a run that was killed goes on where
it stood, and nothing is measured twice unless that is asked for.

Points under an architecture hash of the scheme before stay, and are shown as old: that hash left out
arguments, so they may be another model's. They are never taken over.
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
"""Raised when a change of the measuring itself makes older points incomparable: until 2 a run's time held the seeding
of random numbers, which takes longer than a small model."""
POLL_S = 0.5


def place_of(device: Device, settings: MeasurementSettings) -> str:
    """The address of everything measured on this device, with this software and these settings.

    The time budget is not part of it: it makes a figure surer, and the interval says how sure it is.
    """
    facts = asdict(device) | {
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "method": METHOD_VERSION,
        "cuda_graphs": settings.cuda_graphs,
    }
    # Only where they are not the default: what was measured before there was a choice keeps its address.
    defaults = MeasurementSettings()
    for name in ("dtype", "compile_mode", "repeats", "seed", "host_copies", "sequence_length"):
        if getattr(settings, name) != getattr(defaults, name):
            facts[name] = getattr(settings, name)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class PointStore:
    """The points of one place. `since` (Unix seconds) leaves out what was measured earlier."""

    def __init__(self, store: Store, device_key: str, since: float = 0.0) -> None:
        self.store, self.device_key, self.since = store, device_key, since

    def save(self, point: MeasuredPoint) -> None:
        """Store a point in place of what stood at its address; a figure also ends a failure there. A new one is kept
        from now on, one that was kept before since then."""
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
"""What is said of points that are kept and never taken over."""


def old_batch_sizes(points: PointStore, former_hash: str) -> tuple[int, ...]:
    """Batch sizes at which figures stand under the hash that the version before gave a graph."""
    return tuple(point.batch_size for point in points.load(former_hash) if point.kind == "batch")


@contextlib.contextmanager
def exclusive_measurement(store: Store, device: Device, progress: Progress) -> Iterator[None]:
    """Wait until no other measurement runs on the physical device: two at once would measure each other."""
    name = re.sub(r"[^\w.-]", "_", device.physical)
    with store.lock_file(f"measure-{name}.lock") as lock:
        if not _try_lock(lock):
            # Who waits for a device works not: other jobs may.
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
