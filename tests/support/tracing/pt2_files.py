"""Reading a .pt2 without a child process, and writing ones that torch never would."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchsplit_core.graph import TorchGraph
from torchsplit_core.graph.serialization import GraphParts
from torchsplit_core.tracing.pt2 import read_pt2


def read_file(path: Path) -> TorchGraph:
    """What `trace` does with a .pt2 in a child process, which costs a moment."""
    parts = GraphParts()
    for part in read_pt2(path):
        parts.add(json.loads(json.dumps(part)))
    return parts.graph()


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    """An archive of these members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def members_of(path: Path) -> dict[str, bytes]:
    """Every member's content by its name."""
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def altered(saved: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A saved program with its JSON changed in place, as FOLDER/model.pt2."""
    members = members_of(saved)
    name = next(name for name in members if name.endswith("models/model.json"))
    program = json.loads(members[name])
    change(program)
    members[name] = json.dumps(program).encode()
    return zipped(folder / "model.pt2", members)
