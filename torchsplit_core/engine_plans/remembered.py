"""Engines that were simulated once, kept on disk beside the store: jobs and pages are processes of their own.

One file an engine, named by a hash of all that its figures depend on. Without a store nothing is kept.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import __version__
from torchsplit_core.files.atomic_write import replace_file
from torchsplit_core.files.data_folder import data_folder
from torchsplit_core.llm.constants import EngineConstants
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FOLDER = "engines"
RULES = 1
"""Grows with every change of how an engine's figures are found."""


def name_of(*dependencies: object) -> str:
    """The name of what depends on these values alone, beside the program and its constants."""
    text = repr((RULES, __version__, EngineConstants(), dependencies))
    return hashlib.sha256(text.encode()).hexdigest()


def load(name: str, kinds: tuple[type, ...]) -> Any:
    """The value kept under a name, one of these dataclasses; None where there is none that can be read."""
    from pydantic import ValidationError

    with suppress(OSError, ValueError, RecursionError, KeyError, ValidationError):
        data = json.loads(_path(name).read_text(encoding="utf-8"))
        kind = next(kind for kind in kinds if kind.__name__ == data["kind"])
        return _adapter(kind).validate_python(data["value"])
    return None


def keep(name: str, value: object) -> None:
    """Keep a dataclass under a name. Where there is no store, or its disk is full, nothing is kept."""
    if not data_folder().is_dir():
        return
    from torchsplit_core.files.file_models import to_data

    text = json.dumps({"kind": type(value).__name__, "value": to_data(value, earlier=False)})
    with suppress(OSError, InputFault):
        _path(name).parent.mkdir(exist_ok=True)
        replace_file(_path(name), text)


def _path(name: str) -> Path:
    return data_folder() / FOLDER / f"{name}.json"


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    from torchsplit_core.files.file_models import file_type

    return TypeAdapter(file_type(kind, earlier=False))
