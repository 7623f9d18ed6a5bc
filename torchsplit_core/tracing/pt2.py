"""Reads a .pt2 without torch and without executing anything in it.

`torch.export.load` executes code from the file. A .pt2 is a zip, and its `*/models/NAME.json` (torch's export schema,
major version 8) has the graph: names, operations, edges, shapes, dtypes, module paths and stack traces. Only this and a
small JSON list of weights are opened, no path inside is followed, sizes are checked before unpacking, and the
description is read node by node, so memory grows with the graph only.
"""

from __future__ import annotations

import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchsplit_core.tracing.json_stream import JsonCursor
from torchsplit_core.tracing.pt2_graph import ProgramReader
from torchsplit_core.values import InputFault, Progress
from torchsplit_core.values.names import RepeatedKey

MOST_JSON_BYTES = 1536 * 2**20
"""torch writes about 1.4 kB a node: enough for a million."""
MOST_MEMBERS = 1_000_000
REMEDY = "Save the model by torch.export.save(torch.export.export(model, inputs), FILE)."
MODEL_PATH = re.compile(r"^(?P<top>(?:[^/]+/)?)models/(?P<name>[^/]+)\.json$")
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not support
    RuntimeError,  # an encrypted member
    OSError,  # damaged bzip2 data, or an offset outside the file
    UnicodeDecodeError,
)
"""zipfile's errors for damaged or malicious files."""


def read_in_child(arguments: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    """The graph of the .pt2 `arguments["source"]` in parts, for `isolation.run_limited`."""
    progress(0.2, "reading the file")
    return read_pt2(Path(arguments["source"]))


def read_pt2(path: Path) -> Iterator[dict[str, Any]]:
    """The graph of a .pt2 as parts for `GraphParts`, without its architecture hash.

    Raises InputFault for an empty file, one that is no .pt2 or has no exported program, and one whose model description
    would unpack to more than 1.5 GiB.
    """
    if path.stat().st_size == 0:
        raise InputFault(path.name, "is empty", REMEDY)
    try:
        with zipfile.ZipFile(path) as archive:
            member, text, weights = _read_archive(archive, path.name)
    except UNREADABLE as error:
        raise InputFault(
            path.name, f"cannot be read as the zip archive that a .pt2 is: {_printable(error)}", REMEDY
        ) from error
    return _graph_parts(text, weights, f"{path.name}: {member}")


def _read_archive(archive: zipfile.ZipFile, where: str) -> tuple[str, str, dict[str, str]]:
    """The name and the text of the program's description, and the storage of each weight."""
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise InputFault(
            where, f"has {len(members)} members, more than the {MOST_MEMBERS} that are read", REMEDY
        )
    programs = [(member, match) for member in members if (match := MODEL_PATH.match(member.filename))]
    if not programs:
        raise InputFault(
            where,
            "holds no exported program: no member of it is models/NAME.json",
            REMEDY,
        )
    if len(programs) > 1:
        names = ", ".join(match["name"] for _, match in programs[:5])
        raise InputFault(
            where,
            f"holds {len(programs)} programs: {_printable(names)}",
            "Save each program to a file of its own.",
        )
    member, match = programs[0]
    weights: dict[str, str] = {}
    by_name = {entry.filename: entry for entry in members}
    config = by_name.get(f"{match['top']}data/weights/{match['name']}_weights_config.json")
    if config is not None:
        weights = _weight_storages(_text(archive, config, where), f"{where}: {_printable(config.filename)}")
    return _printable(member.filename), _text(archive, member, where), weights


def _graph_parts(text: str, weights: dict[str, str], place: str) -> Iterator[dict[str, Any]]:
    """The parts of the graph that this text describes."""
    if not text.lstrip(" \t\r\n").startswith("{"):
        raise _no_json(place, f"it begins with {text[:20]!r}")
    try:
        yield from ProgramReader(text, weights).parts()
    except json.JSONDecodeError as error:
        raise _no_json(place, error) from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, InputFault):
            raise error.within(place) from None
        if isinstance(error, RepeatedKey):
            raise InputFault(place, str(error), "Export the model again.") from error
        raise InputFault(
            place,
            f"does not follow torch's export schema: {_printable(f'{type(error).__name__}: {error}')}",
            "Export the model again with torch 2.13.",
        ) from error


def _printable(text: object) -> str:
    """Text of the file, safe for a message: a control character could steer a terminal."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text)[:200]
    )


def _no_json(place: str, reason: object) -> InputFault:
    return InputFault(place, f"is not a JSON object: {_printable(reason)}", REMEDY)


def _text(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> str:
    """A member's text. Its size is checked first, and again while unpacking, as the stated size may be false."""
    place = f"{where}: {_printable(member.filename)}"
    if member.file_size > MOST_JSON_BYTES:
        raise _too_large(place, member.file_size)
    with archive.open(member) as packed:
        content = packed.read(MOST_JSON_BYTES + 1)
    if len(content) > MOST_JSON_BYTES:
        raise _too_large(place, len(content))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _no_json(place, error) from error


def _too_large(place: str, size: int) -> InputFault:
    return InputFault(
        place,
        f"unpacks to {size} bytes or more, above the largest description that is read, {MOST_JSON_BYTES}",
        REMEDY,
    )


def _weight_storages(text: str, place: str) -> dict[str, str]:
    """Weight name → its storage: the name of its data inside the archive and its view of them."""
    storages: dict[str, str] = {}
    try:
        cursor = JsonCursor(text)
        for key in cursor.entries():
            if key != "config":
                cursor.value()
                continue
            for name in cursor.entries():
                entry = cursor.value()
                if isinstance(entry, dict):
                    storages[name] = json.dumps(
                        [entry.get("path_name"), entry.get("tensor_meta")], sort_keys=True
                    )
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_json(place, error) from error
    return storages
