"""What a change of MIG instances must undo, written down before its first step.

The file stands while a GPU is not as it was found: whoever starts next, after a kill or a power cut, reads
it and brings the former instances back.
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
    """A GPU instance at its place; `computes` says that it has the compute instance that takes all of it."""

    profile: str
    profile_id: int
    start: int
    size: int
    computes: bool

    @property
    def place(self) -> tuple[int, int, int]:
        """What makes two instances the same slice: profile, start and size. Ids and UUIDs may change."""
        return self.profile_id, self.start, self.size


@dataclass(frozen=True, slots=True)
class MigChange:
    """The instances of a GPU as found (`former`) and as they are to be for a while (`target`)."""

    gpu_uuid: str
    gpu_name: str
    former: tuple[JournalInstance, ...]
    target: tuple[JournalInstance, ...]


def to_journal_instance(item: GpuInstanceListing) -> JournalInstance:
    """A listed instance as one that can be made again; its compute instances count as one or none."""
    computes = bool(item.compute_instances)
    return JournalInstance(item.profile, item.profile_id, item.start, item.size, computes)


@contextmanager
def open_journal(path: Path, change: MigChange) -> Iterator[None]:
    """Write the journal in one step and hold it: while this process lives no other takes it for a cut-off one.

    Who has undone the change removes the file. Raises InputFault where one stands already or where it
    cannot be written.
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
    """Hold the journal of a change that was cut off; None where there is none, or its process still lives.

    Raises InputFault for a file that is no journal.
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
        # Its owner may have ended it between the opening and the lock.
        yield None if text is None or not path.exists() else _parsed(path, text)


def _link(written: Path, path: Path) -> None:
    # A link fails where the name is taken, so of two writers one learns of the other.
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
