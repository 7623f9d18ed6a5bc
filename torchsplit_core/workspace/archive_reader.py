"""Reads an untrusted workspace archive: neither sizes nor names inside are trusted.

The zip's directory is checked before anything is unpacked, and enforced while unpacking: an entry never gives more than
it claimed. No name inside becomes a path.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from torchsplit_core.files import UPLOAD_BYTES, parse_json, read_text
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.workspace.store import KINDS
from torchsplit_core.workspace.sweep_archive import read_sweeps
from torchsplit_core.workspace.sweeps import StoredSweep

MANIFEST = "manifest.json"
EXPORT_AGAIN = "Export the workspace again."
LARGEST_ARCHIVE_BYTES = 1024 * 2**20
"""Archives that unpack to more are refused."""
LARGEST_ENTRY_BYTES = 512 * 2**20
LARGEST_MANIFEST_BYTES = 8 * 2**20
MOST_ENTRIES = 100_000
MOST_RESULTS = 10_000
_BLOCK = 2**20
_DIRECTORY_ENTRY_MARK = b"PK\x01\x02"  # APPNOTE.TXT 4.3.12
_LOCAL_HEADER = 30  # bytes before the name, APPNOTE.TXT 4.3.7
_ENCRYPTED = 1  # bit of the flags, APPNOTE.TXT 4.4.4


@dataclass(frozen=True, slots=True)
class ArchivedResult:
    """The manifest's entry of one result: `file` is its name inside the archive."""

    kind: str
    name: str
    file: str


class ArchiveReader:
    """An open archive with a checked directory and manifest."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._entries = _directory(archive)
        self._seen: set[str] = set()
        if MANIFEST not in self._entries:
            problem = f"is no exported workspace: it has no {MANIFEST}"
            raise InputFault("archive", problem, "Choose the zip file that an export of a workspace wrote.")
        text = _text(_join(self._content(MANIFEST, LARGEST_MANIFEST_BYTES)), "archive: manifest")
        self._manifest = parse_json(text, "archive: manifest", memory_bytes=UPLOAD_BYTES)
        self.name, self.results = _checked_manifest(self._manifest)

    def blocks(self, result: ArchivedResult) -> Iterator[bytes]:
        """The bytes of a result as it is unpacked, each once: so the files never exceed the archive's size."""
        return self._read_once(result.file)

    @property
    def result_bytes(self) -> int:
        """The unpacked size of its results, as its directory claims."""
        return sum(
            self._entries[entry_name].file_size
            for entry_name in {result.file for result in self.results} & self._entries.keys()
        )

    def check(self, result: ArchivedResult) -> None:
        """Raise InputFault if a result is no valid file of its kind; uploads are never read."""
        blocks = self.blocks(result)
        if result.kind == "upload":
            for _ in blocks:  # to check the claimed sizes
                pass
            return
        where = f"archive: {result.name}"
        text = _text(_join(blocks), where)
        read_text(text, origin=where, expected=f"torchsplit.{result.kind}", memory_bytes=UPLOAD_BYTES)

    def sweeps(self, *, verify: bool) -> tuple[tuple[str, StoredSweep], ...]:
        """The sweeps by scenario; `verify`: every plan is verified."""
        scenarios = {result.name.strip() for result in self.results if result.kind == "plan_request"}
        return read_sweeps(
            self._manifest.get("sweeps", []),
            scenarios,
            lambda inside: _text(_join(self._read_once(inside)), "archive: sweeps"),
            verify=verify,
        )

    def _read_once(self, entry_name: str) -> Iterator[bytes]:
        if entry_name in self._seen:
            raise InputFault("archive", f"names the file {quoted(entry_name)} twice", EXPORT_AGAIN)
        self._seen.add(entry_name)
        return self._content(entry_name, LARGEST_ENTRY_BYTES)

    def _content(self, entry_name: str, max_bytes: int) -> Iterator[bytes]:
        entry = self._entries.get(entry_name)
        if entry is None:
            raise InputFault("archive", f"lacks the file {quoted(entry_name)} that it names", EXPORT_AGAIN)
        if entry.file_size > max_bytes:
            raise InputFault(
                "archive",
                f"holds {quoted(entry_name)} of {entry.file_size} bytes, above the largest that is "
                f"read, {max_bytes >> 20} MiB",
                "Export less at once.",
            )
        return self._unpacked(entry)

    def _unpacked(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        with self._archive.open(entry) as stream:
            yield from _read_exactly(stream, entry.file_size)


@contextmanager
def open_archive(data: bytes) -> Iterator[ArchiveReader]:
    """The archive in these bytes. Raises InputFault if it is none, on opening and in use."""
    with _open_zip(data) as archive:
        yield ArchiveReader(archive)


def unpacked_bytes(data: bytes) -> int:
    """The unpacked size of an archive, by its directory. Raises InputFault if it is none, or more than 1 GiB."""
    with _open_zip(data) as archive:
        return sum(entry.file_size for entry in _directory(archive).values())


@contextmanager
def _open_zip(data: bytes) -> Iterator[zipfile.ZipFile]:
    # Before the directory is read, which takes 600 bytes of memory for each of 47.
    if data.count(_DIRECTORY_ENTRY_MARK) > MOST_ENTRIES:
        raise InputFault(
            "archive", f"holds more than the {MOST_ENTRIES} files that are read", "Export less at once."
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield archive
    except InputFault:
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, EOFError, OSError, zlib.error) as error:
        raise InputFault(
            "archive", f"cannot be read as a workspace that TorchSplit exported: {error}", EXPORT_AGAIN
        ) from error


def _directory(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The entries by name, after checking that none is too large or overlaps another."""
    entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > LARGEST_ARCHIVE_BYTES:
        raise InputFault("archive", "unpacks to more than 1 GiB", "Export less at once.")
    for entry in entries:
        if (
            entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            or entry.flag_bits & _ENCRYPTED
        ):
            raise zipfile.BadZipFile("TorchSplit stores or deflates")
    by_offset = sorted(entries, key=lambda entry: entry.header_offset)
    ends = [entry.header_offset + _LOCAL_HEADER + entry.compress_size for entry in by_offset]
    starts = [entry.header_offset for entry in by_offset[1:]] + [archive.start_dir]
    if any(end > start for end, start in zip(ends, starts, strict=True)):
        raise zipfile.BadZipFile("entries overlap")
    by_name = {entry.filename: entry for entry in entries}
    if len(by_name) < len(entries):
        raise zipfile.BadZipFile("two entries have one name")
    return by_name


def _read_exactly(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """The claimed bytes, block by block: read() would unpack everything before checking the size."""
    count = 0
    while count <= size and (block := stream.read(min(_BLOCK, size + 1 - count))):
        count += len(block)
        yield block
    if count != size:
        raise zipfile.BadZipFile("an entry is not of the size its directory says")


def _join(blocks: Iterator[bytes]) -> bytearray:
    content = bytearray()
    for block in blocks:
        content += block
    return content


def _text(content: bytearray, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFault(where, "is not text in UTF-8", EXPORT_AGAIN) from error


def _checked_manifest(manifest: Any) -> tuple[str, tuple[ArchivedResult, ...]]:
    if not isinstance(manifest, dict) or manifest.get("format") != "torchsplit.workspace":
        raise InputFault("archive: manifest", "is not of the format torchsplit.workspace", EXPORT_AGAIN)
    if manifest.get("version") != 1:
        problem = f"is {quoted(manifest.get('version'))}, and version 1 is read"
        raise InputFault("archive: version", problem, "Update TorchSplit.")
    results, name = manifest.get("results"), manifest.get("name")
    if not isinstance(name, str):
        raise InputFault("archive: name", f"is {quoted(name)}, not a text", EXPORT_AGAIN)
    if not isinstance(results, list) or len(results) > MOST_RESULTS:
        raise InputFault("archive: results", f"are not a list of at most {MOST_RESULTS}", EXPORT_AGAIN)
    return name, tuple(map(_result, results))


def _result(entry: Any) -> ArchivedResult:
    if not isinstance(entry, dict) or entry.get("kind") not in KINDS:
        problem = f"{quoted(entry)} is of none of the kinds {', '.join(KINDS)}"
        raise InputFault("archive: results", problem, EXPORT_AGAIN)
    if not isinstance(entry.get("name"), str) or not isinstance(entry.get("file"), str):
        raise InputFault("archive: results", f"{quoted(entry)} lacks a name or a file", EXPORT_AGAIN)
    return ArchivedResult(entry["kind"], entry["name"], entry["file"])
