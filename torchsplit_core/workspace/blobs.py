"""Contents as files addressed by their SHA-256: on disk when `put` returns, checked on every read.

A file is written to a temporary name, synced and renamed, and its folder synced: after a power cut it is complete or
absent. Writers hold a shared lock until the row that names the content is committed; the collector of unused contents
takes it exclusively, so no clock decides what may be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.workspace.faults import fault_from_os_error

_DIGEST = re.compile("[0-9a-f]{64}")


class BlobStore:
    """The contents under `root`/blobs. Raises StoreFault if the disk refuses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "blobs"

    def prepare(self) -> None:
        """Make the folder and its lock. Raises OSError."""
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.root)
        if not (lock := self.folder.with_suffix(".lock")).exists():
            lock.touch()

    def path(self, digest: str) -> Path:
        """The path of the content with this SHA-256."""
        return self.folder / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Store bytes and return their SHA-256. On disk on return; replaces a damaged file of the same name."""
        digest = hashlib.sha256(data).hexdigest()
        if not self._is_stored(digest):
            self.put_blocks((data,))
        return digest

    def put_blocks(self, blocks: Iterable[bytes]) -> tuple[str, int]:
        """The same for a stream of blocks, held one at a time; returns SHA-256 and size."""
        digest, size = hashlib.sha256(), 0
        try:
            incoming = self._make_folder("coming")
            handle, temporary = tempfile.mkstemp(dir=incoming)
            try:
                with os.fdopen(handle, "wb") as stream:
                    for block in blocks:
                        stream.write(block)
                        digest.update(block)
                        size += len(block)
                    stream.flush()
                    os.fsync(stream.fileno())
                if not self._is_stored(name := digest.hexdigest()):
                    path = self._make_folder(name[:2]) / name
                    Path(temporary).replace(path)
                    sync_folder(path.parent)
            finally:
                Path(temporary).unlink(missing_ok=True)
        except OSError as error:
            raise fault_from_os_error(self.root, error) from error
        return name, size

    def _make_folder(self, name: str) -> Path:
        """Make a folder for contents; on disk on return."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            sync_folder(self.folder)
        return folder

    def _is_stored(self, digest: str) -> bool:
        """Whether the content is stored undamaged; it is on disk on return."""
        path = self.path(digest)
        try:
            if not _has_content(path, digest):
                return False
            # Its writer may not have synced it yet.
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
            sync_folder(path.parent)
        except OSError as error:
            raise fault_from_os_error(self.root, error) from error
        return True

    def size(self, digests: Iterable[str]) -> int:
        """Total bytes of these contents, each once; missing files count as 0."""
        total = 0
        for digest in set(digests):
            with contextlib.suppress(OSError):
                total += self.path(digest).stat().st_size
        return total

    def get(self, digest: str, where: str, name: str) -> bytes:
        """The content; `where` and `name` describe it in messages.

        Raises InputFault if its file is missing or changed.
        """
        remedy = "Make the result again, or import it: that replaces the file."
        if not is_digest(digest):
            problem = f"{quoted(name)} is stored under no valid digest: the database is damaged"
            raise InputFault(where, problem, remedy)
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError as error:
            problem = f"{quoted(name)} is missing in the workspace folder: its file was removed"
            raise InputFault(where, problem, remedy) from error
        except OSError as error:
            raise fault_from_os_error(self.root, error) from error
        if hashlib.sha256(data).hexdigest() != digest:
            state = "is empty" if not data else "is not what was stored"
            raise InputFault(
                where, f"the file of {quoted(name)} {state}: a damaged disk, or a power cut", remedy
            )
        return data

    @contextlib.contextmanager
    def write_lock(self) -> Iterator[None]:
        """Hold this from `put` until the row that names the content is committed."""
        with self._locked(fcntl.LOCK_SH):
            yield

    def remove_unused(self, used: Collection[str], among: Collection[str] | None = None) -> int:
        """Remove the contents (of `among`, else all) that are not `used`; returns the bytes freed.

        Requires `collect_lock`, with `used` read inside it. Files that cannot be removed stay until the next time.
        """
        freed = 0
        paths = map(self.path, among) if among is not None else self.folder.glob("*/*")
        for path in paths:
            if path.name not in used:
                with contextlib.suppress(OSError):
                    size = path.stat().st_size
                    path.unlink()
                    freed += size
        return freed

    @contextlib.contextmanager
    def collect_lock(self) -> Iterator[None]:
        """While held, no writer is between storing a content and its row."""
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        try:
            # Made with the folder, so it exists if the disk is full later. Network file systems only lock
            # files that are open for writing.
            handle = os.open(self.folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise fault_from_os_error(self.root, error) from error
        try:
            try:
                fcntl.flock(handle, kind)
            except OSError as error:
                raise fault_from_os_error(self.root, error) from error
            yield
        finally:
            os.close(handle)


def is_digest(value: object) -> bool:
    """Whether a stored value is a valid digest; in a damaged database it may be anything."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _has_content(path: Path, digest: str) -> bool:
    """Whether the file exists with the content of its name."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False
