"""Loads a checkpoint as data only: a run's folder may come from anybody, and nothing in it is executed.

Torch's distributed checkpoint writes pickles, which can name any function. Here the metadata may name only torch's
metadata classes, and every item is loaded with `weights_only`.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path, PurePath
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from torchsplit_core.values import InputFault, quoted, system_reason

METADATA = ".metadata"
_TORCH = "torch.distributed.checkpoint"
ALLOWED = frozenset(
    {
        *(
            (f"{_TORCH}.metadata", name)
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        (f"{_TORCH}.filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        # Paths where the checkpoint was written; the module depends on the version of Python.
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
    }
)
"""(module, name) of the classes that metadata consists of, besides torch's dtypes."""


class _Unpickler(pickle.Unpickler):
    """Unpickles metadata; refuses every other class or function before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        number = module == "torch" and isinstance(vars(torch).get(name), torch.dtype)
        if not number and (module, name) not in ALLOWED:
            raise _ForbiddenGlobal(f"{module}.{name}")
        return super().find_class(module, name)


class _ForbiddenGlobal(Exception):
    """A pickle names a global that no checkpoint needs; the argument is its name."""


class SafeReader(FileSystemReader):  # type: ignore[misc]
    """Reads the checkpoint in a folder. Raises InputFault if its metadata is invalid or names a forbidden global."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._where = f"checkpoint {path.name}"
        # Read now: DCP swallows what it raises later and retries it as a rank's own metadata.
        self._metadata = self._read(path)

    def read_metadata(self) -> Metadata:
        """The checkpoint's metadata."""
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Load each item into its target. Raises InputFault for an item that is more than weights and plain values."""
        try:
            return super().read_data(plan, planner)
        except pickle.UnpicklingError as error:
            raise self._refused(_refused_name(error)) from error

    def _read(self, path: Path) -> Metadata:
        try:
            with (path / METADATA).open("rb") as stream:
                metadata = _Unpickler(stream).load()
        except _ForbiddenGlobal as error:
            raise self._refused(str(error)) from None
        except OSError as error:
            raise self._unreadable(system_reason(error)) from error
        except Exception as error:  # a pickle can raise whatever its classes raise
            raise self._unreadable(f"it is no metadata ({type(error).__name__})") from error
        if not _is_metadata(metadata):
            raise self._unreadable("it is not the list of a checkpoint's items")
        return metadata

    def _unreadable(self, reason: str) -> InputFault:
        return InputFault(
            f"{self._where}: {METADATA}",
            f"cannot be read: {reason}",
            "Remove this checkpoint: the run goes on from an earlier one, if it has one.",
        )

    def _refused(self, name: str) -> InputFault:
        return InputFault(
            self._where,
            f"asks to load {quoted(name)}, which is no part of a checkpoint: to load it could run code. "
            "Nothing of it was run",
            "Somebody else wrote it, or changed it: go on only with runs of your own.",
        )


class SafePlanner(DefaultLoadPlanner):  # type: ignore[misc]
    """Torch's planner, except that items other than tensors are loaded as plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load text, numbers, tuples and the like; raises pickle.UnpicklingError for anything else."""
        plain = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), plain)
        plain.seek(0)
        super().load_bytes(read_item, plain)


def _refused_name(error: pickle.UnpicklingError) -> str:
    """The class or function that weights_only refused; torch's error names it only in its text."""
    match = re.search(r"(?:GLOBAL|function|class) '?([\w.]+)", str(error))
    return match[1] if match else "an unknown class"


def _is_metadata(candidate: object) -> bool:
    """Whether it lists items of known kinds, in files of the same folder."""
    return (
        isinstance(candidate, Metadata)
        and isinstance(candidate.state_dict_metadata, dict)
        and all(
            isinstance(name, str) and isinstance(item, (TensorStorageMetadata, BytesStorageMetadata))
            for name, item in candidate.state_dict_metadata.items()
        )
        and isinstance(candidate.storage_data, dict)
        and all(
            isinstance(key, MetadataIndex) and _is_plain_name(getattr(item, "relative_path", None))
            for key, item in candidate.storage_data.items()
        )
    )


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and name == PurePath(name).name
