"""Reading a .pt2 without torch and without executing anything in it.

`torch.export.load` executes code that a file carries. A .pt2 is a zip, and its `*/models/NAME.json`
(torch's export schema, major version 8) holds the graph: names, operations, edges, shapes,
dtypes, module paths and stack traces. Nothing else but two small JSON lists of weights is opened,
no path named inside is followed, and sizes are checked before anything is unpacked.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

from torchsplit_core.clients import Told
from torchsplit_core.graph.graph_json import graph_to_dict
from torchsplit_core.tracing.pt2_graph import ProgramReader
from torchsplit_core.values import InputFault, Progress

MOST_JSON_BYTES = 512 * 2**20
MOST_MEMBERS = 1_000_000
REMEDY = "Save the model by torch.export.save(torch.export.export(model, inputs), FILE)."
MODEL = re.compile(r"^(?P<top>(?:[^/]+/)?)models/(?P<name>[^/]+)\.json$")


def read_in_child(arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """The graph contract of the .pt2 `arguments["source"]`, for `isolation.run_limited`."""
    progress(0.2, "reading the file")
    return read_pt2(Path(arguments["source"]))


def read_pt2(path: Path) -> dict[str, Any]:
    """The graph contract (without architecture hash) of a .pt2.

    Raises InputFault for an empty file, one that is no .pt2 or holds no exported program, and one
    whose description of the model would unpack to more than 512 MiB.
    """
    if path.stat().st_size == 0:
        raise InputFault(path.name, Told("an empty file"), "the file holds a model", REMEDY)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path.name)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError) as error:
        # NotImplementedError: a compression that zipfile does not know.
        raise InputFault(
            path.name, Told(error), "a .pt2 is a zip archive made by torch.export.save", REMEDY
        ) from error


def _read(archive: zipfile.ZipFile, where: str) -> dict[str, Any]:
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise InputFault(where, len(members), f"an archive has at most {MOST_MEMBERS} members", REMEDY)
    found = [(member, match) for member in members if (match := MODEL.match(member.filename))]
    if not found:
        raise InputFault(
            where,
            Told(f"{len(members)} members, none of them models/NAME.json"),
            "the archive holds an exported program",
            REMEDY,
        )
    if len(found) > 1:
        names = ", ".join(match["name"] for _, match in found[:5])
        raise InputFault(
            where, Told(names), "the archive holds one program", "Save each program to a file of its own."
        )
    member, match = found[0]
    program = _json(archive, member, where)
    weights: dict[str, str] = {}
    by_name = {entry.filename: entry for entry in members}
    config = by_name.get(f"{match['top']}data/weights/{match['name']}_weights_config.json")
    if config is not None:
        weights = _storages(_json(archive, config, where))
    try:
        return graph_to_dict(ProgramReader(program, weights).graph())
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, InputFault):
            raise
        raise InputFault(
            f"{where}: {member.filename}",
            Told(f"{type(error).__name__}: {error}"),
            "the program follows torch's export schema",
            "Export it again with torch 2.13.",
        ) from error


def _json(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> dict[str, Any]:
    """One JSON object, its size checked first, and again as it unpacks, for the stated size may lie."""
    place = f"{where}: {member.filename}"
    if member.file_size > MOST_JSON_BYTES:
        raise InputFault(
            place,
            member.file_size,
            f"it unpacks to at most {MOST_JSON_BYTES} bytes",
            "That is no description of a model.",
        )
    with archive.open(member) as packed:
        text = packed.read(MOST_JSON_BYTES + 1)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputFault(place, Told(error), "it is JSON", REMEDY) from error
    if not isinstance(content, dict):
        raise InputFault(place, type(content).__name__, "it is a JSON object", REMEDY)
    return content


def _storages(config: dict[str, Any]) -> dict[str, str]:
    """Weight name → what it occupies: the name of its data inside the archive and its view of them."""
    listed = config.get("config")
    found: dict[str, str] = {}
    for name, entry in listed.items() if isinstance(listed, dict) else ():
        if isinstance(entry, dict):
            found[name] = json.dumps([entry.get("path_name"), entry.get("tensor_meta")], sort_keys=True)
    return found
