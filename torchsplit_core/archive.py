"""A whole workspace as one zip file, and back: a manifest, one file a result, and the sweeps of its scenarios.

What comes in is hostile: sizes are checked before anything is unpacked, no name inside the
archive becomes a path, and every result must be a valid contract file. Uploads stay untrusted.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from typing import Any

from torchsplit_core.files import read_text
from torchsplit_core.storage import KINDS, Store, Workspace
from torchsplit_core.sweep_archive import read_sweeps, sweep_entries
from torchsplit_core.sweep_store import SweepStore
from torchsplit_core.values import InputFault

LARGEST_ARCHIVE_BYTES = 1024 * 2**20
"""An archive that unpacks to more is refused."""
MOST_RESULTS = 10_000


def export_workspace(workspace: Workspace) -> bytes:
    """The workspace's results and sweeps as a zip file."""
    buffer = io.BytesIO()
    entries: list[dict[str, str]] = []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, artifact in enumerate(workspace.artifacts()):
            inside = f"results/{number:04d}"
            archive.writestr(inside, workspace.get_bytes(artifact.kind, artifact.name))
            entries.append({"kind": artifact.kind, "name": artifact.name, "file": inside})
        manifest = {
            "format": "torchsplit.workspace",
            "version": 1,
            "name": workspace.name,
            "results": entries,
            "sweeps": sweep_entries(workspace, archive.writestr),
        }
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
    return buffer.getvalue()


def import_workspace(store: Store, data: bytes) -> Workspace:
    """A new workspace from an exported zip file. Raises InputFault, and leaves nothing behind, where it is not one."""
    checked: list[tuple[str, str, bytes]] = []
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_ARCHIVE_BYTES:
                raise InputFault(
                    "archive", "over 1 GiB", "a workspace unpacks to at most 1 GiB", "Export less at once."
                )
            manifest = json.loads(archive.read("manifest.json"))
            # Half a surrogate pair is no text that could be stored.
            json.dumps(manifest, ensure_ascii=False).encode()
            entries = _entries(manifest)
            seen: set[str] = set()

            def content_of(inside: str) -> bytes:
                # Read once each, files are no more than the archive unpacks to.
                if inside in seen:
                    raise InputFault("archive", inside, "every file of it is named once", "Export it again.")
                seen.add(inside)
                return archive.read(inside)

            for kind, name, inside in entries:
                content = content_of(inside)
                if kind != "upload":
                    read_text(content.decode(), origin=f"archive: {name}", expected=f"torchsplit.{kind}")
                checked.append((kind, name, content))
            sweeps = read_sweeps(
                manifest.get("sweeps", []),
                {name.strip() for kind, name, _ in entries if kind == "plan_request"},
                lambda inside: content_of(inside).decode(),
            )
    except InputFault:
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, EOFError, zlib.error) as error:
        raise InputFault(
            "archive",
            "the uploaded file",
            "a workspace archive is a zip file that TorchSplit exported",
            "Export it again.",
        ) from error
    workspace = store.create(store.free_name(str(manifest["name"])[:100] or "imported"))
    try:
        for kind, name, content in reversed(checked):
            workspace.put_bytes(kind, name, content)
        for name, sweep in sweeps:
            SweepStore(workspace, name).put(sweep)
    except BaseException:
        store.delete(workspace.id)
        raise
    return workspace


def _entries(manifest: Any) -> list[tuple[str, str, str]]:
    if not isinstance(manifest, dict) or manifest.get("format") != "torchsplit.workspace":
        raise InputFault(
            "archive: manifest", "another format", "format is torchsplit.workspace", "Export it again."
        )
    if manifest.get("version") != 1:
        raise InputFault("archive: version", manifest.get("version"), "version is 1", "Update TorchSplit.")
    results = manifest.get("results")
    if (
        not isinstance(results, list)
        or len(results) > MOST_RESULTS
        or not isinstance(manifest.get("name"), str)
    ):
        raise InputFault(
            "archive: results", "not a list", f"at most {MOST_RESULTS} results", "Export it again."
        )
    entries = []
    for entry in results:
        if not isinstance(entry, dict) or entry.get("kind") not in KINDS:
            raise InputFault(
                "archive: results", entry, f"kind is one of {', '.join(KINDS)}", "Export it again."
            )
        if not isinstance(entry.get("name"), str) or not isinstance(entry.get("file"), str):
            raise InputFault(
                "archive: results", entry, "every result has a name and a file", "Export it again."
            )
        entries.append((entry["kind"], entry["name"], entry["file"]))
    return entries
