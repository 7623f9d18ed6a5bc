"""What was measured of a host, saved as JSON in one file of the store by a hash of what it depends on."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchsplit_core.files.atomic_write import replace_file
from torchsplit_core.values import InputFault


def saved_measurement(path: Path, key: str) -> dict[str, Any]:
    """The entry saved under the key; empty where there is none that can be read: it can be measured again."""
    entry = _entries(path).get(key)
    return entry if isinstance(entry, dict) else {}


def save_measurement(path: Path, key: str, entry: dict[str, Any]) -> None:
    """Save the entry beside the others. A file that cannot be written is left out: work goes on without it."""
    with suppress(InputFault):
        replace_file(path, json.dumps({**_entries(path), key: entry}, indent=1))


def _entries(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}
