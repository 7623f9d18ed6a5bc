"""The journal of a change of MIG instances: what must be undone, written before the first step.

The file exists while a GPU differs from its original state. After a kill or a power cut, the next start reads it and
restores the former instances.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchsplit_core.hardware.nvml import GpuInstanceListing
from torchsplit_core.values import InputFault, system_reason

FORMAT = "torchsplit.mig_journal"


@dataclass(frozen=True, slots=True)
class JournalInstance:
    """A GPU instance and its placement; `computes`: it has one compute instance that takes all of it."""

    profile: str
    profile_id: int
    start: int
    size: int
    computes: bool

    @property
    def place(self) -> tuple[int, int, int]:
        """The identity of a slice: profile id, start and size. Ids and UUIDs may change."""
        return self.profile_id, self.start, self.size


@dataclass(frozen=True, slots=True)
class MigChange:
    """The original instances of a GPU (`former`) and its temporary ones (`target`)."""

    gpu_uuid: str
    gpu_name: str
    former: tuple[JournalInstance, ...]
    target: tuple[JournalInstance, ...]


def to_journal_instance(item: GpuInstanceListing) -> JournalInstance:
    """A listed instance as a journal entry; its compute instances are reduced to one or none."""
    computes = bool(item.compute_instances)
    return JournalInstance(item.profile, item.profile_id, item.start, item.size, computes)


@contextmanager
def open_journal(path: Path, change: MigChange) -> Iterator[None]:
    """Write the journal atomically and lock it, so that no other process treats it as interrupted while this one lives.

    The code that undoes the change removes the file. Raises InputFault if a journal already exists or cannot be
    written.
    """
    data = {"format": FORMAT, "version": 1, **asdict(change)}
    temporary = None
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            stream = held.enter_context(os.fdopen(handle, "w", encoding="utf-8"))
            fcntl.flock(stream, fcntl.LOCK_EX)
            json.dump(data, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
            _link(Path(temporary), path)
        except OSError as error:
            raise InputFault(
                str(path),
                f"the journal of the change cannot be written: {system_reason(error)}",
                "Nothing was changed. Free some space there, or make its folder writable.",
            ) from error
        finally:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
        yield


@contextmanager
def take_journal(path: Path) -> Iterator[MigChange | None]:
    """Lock and read the journal of an interrupted change; None if there is none, or its process still lives.

    Raises InputFault for a file that is not a journal.
    """
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        yield None
        return
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = stream.read()
        except BlockingIOError:
            text = None
        # Its owner may have removed it between open and lock.
        yield None if text is None or not path.exists() else _parsed(path, text)


def _link(written: Path, path: Path) -> None:
    # link() fails if the name exists, so of two writers one is refused.
    try:
        os.link(written, path)
    except FileExistsError as error:
        raise InputFault(
            str(path),
            "exists, as an earlier change of MIG instances is under way or was not undone",
            "Wait for it, or bring the former instances back first.",
        ) from error


def _parsed(path: Path, text: bytes) -> MigChange:
    try:
        data: dict[str, Any] = json.loads(text)
        if (data["format"], data["version"]) != (FORMAT, 1):
            raise ValueError(f"not {FORMAT} version 1")
        former, target = _instances(data["former"]), _instances(data["target"])
        return MigChange(data["gpu_uuid"], data["gpu_name"], former, target)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        remedy = "Compare `nvidia-smi mig -lgi` with what the GPU should have, then delete the file."
        raise InputFault(str(path), f"is not a readable {FORMAT} file: {_missing(error)}", remedy) from error


def _missing(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _instances(rows: Iterable[dict[str, Any]]) -> tuple[JournalInstance, ...]:
    return tuple(JournalInstance(**row) for row in rows)
