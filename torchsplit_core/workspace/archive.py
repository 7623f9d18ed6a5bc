"""Export and import of a whole workspace as one zip file: a manifest, one file a result, and its scenarios' sweeps.

An imported archive is untrusted: everything is checked first, in a child (see `archive_reader`), every result must be a
valid contract file, and only then is anything stored. Uploads stay untrusted.
"""

from __future__ import annotations

import io
import json
import sqlite3
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchsplit_core.values import InputFault, Progress
from torchsplit_core.workspace.archive_reader import LARGEST_ENTRY_BYTES, open_archive, unpacked_bytes
from torchsplit_core.workspace.faults import check_quota
from torchsplit_core.workspace.store import Store, Workspace
from torchsplit_core.workspace.sweep_archive import sweep_entries
from torchsplit_core.workspace.sweeps import write_sweep
from torchsplit_core.workspace.untrusted_files import IN_PROCESS_BYTES, MEMORY_BYTES, run_on_file
from torchsplit_core.workspace.untrusted_files import LIMITS as FOREIGN_LIMITS

CHECK_TARGET = "torchsplit_core.workspace.archive:check_in_child"
LIMITS = replace(FOREIGN_LIMITS, wall_s=120.0, cpu_s=120, memory_bytes=MEMORY_BYTES + LARGEST_ENTRY_BYTES)
"""Of the check: a gigabyte of small results takes a minute, and one entry is in memory beside its parsed value."""


def export_workspace(workspace: Workspace) -> bytes:
    """The workspace's results and sweeps as a zip file.

    A result whose file is damaged or missing is left out; the manifest (`left_out`) and a text in the archive say which
    and why.
    """
    buffer = io.BytesIO()
    entries: list[dict[str, str]] = []
    left_out: list[dict[str, str]] = []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, artifact in enumerate(workspace.artifacts()):
            entry_name = f"results/{number:04d}"
            identity = {"kind": artifact.kind, "name": artifact.name}
            try:
                content = workspace.get_bytes(artifact.kind, artifact.name)
            except InputFault as fault:
                left_out.append(identity | {"reason": fault.problem})
                continue
            archive.writestr(entry_name, content)
            entries.append(identity | {"file": entry_name})
        if left_out:
            lines = (f"{item['kind']} {item['name']}: {item['reason']}" for item in left_out)
            archive.writestr("LEFT_OUT.txt", "Left out of this export:\n" + "\n".join(lines) + "\n")
        manifest = {
            "format": "torchsplit.workspace",
            "version": 1,
            "name": workspace.name,
            "results": entries,
            "left_out": left_out,
            "sweeps": sweep_entries(workspace, archive.writestr),
        }
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
    return buffer.getvalue()


def import_workspace(store: Store, data: bytes) -> Workspace:
    """A new workspace from an exported zip file.

    Raises InputFault, and stores nothing, if it is none, or, before unpacking, if it claims more than a workspace may
    hold.
    """
    with open_archive(data) as archive:
        check_quota(0, archive.result_bytes)
    check_archive(data)
    return store_archive(store, data)


def check_archive(data: bytes) -> None:
    """Raise InputFault unless everything in the archive is as `export_workspace` writes it.

    Runs in a child of limited time and memory, unless it unpacks to little.
    """
    if unpacked_bytes(data) > IN_PROCESS_BYTES:
        run_on_file(CHECK_TARGET, data, {}, subject="archive", limits=LIMITS)
    else:
        _verify(data)


def check_in_child(arguments: dict[str, Any], _progress: Progress) -> None:
    """For `isolation.run_limited`: check the archive in the file `arguments["source"]`."""
    _verify(Path(arguments["source"]).read_bytes())


def _verify(data: bytes) -> None:
    with open_archive(data) as archive:
        for result in archive.results:
            archive.check(result)
        archive.sweeps(verify=True)


def store_archive(store: Store, data: bytes) -> Workspace:
    """Store a checked archive in one transaction: completely or not at all, even if this process dies.

    Results are unpacked block by block.
    """
    with open_archive(data) as archive:
        sweeps = archive.sweeps(verify=False)

        def store_sweeps(database: sqlite3.Connection, identity: str) -> None:
            for name, sweep in sweeps:
                write_sweep(database, identity, name, sweep)

        results = ((result.kind, result.name, archive.blocks(result)) for result in reversed(archive.results))
        return store.add(archive.name[:100] or "imported", results, store_sweeps)
