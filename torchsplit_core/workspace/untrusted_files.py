"""Reads files from a browser: by size first, then in a child of limited time and memory, and only then here.

The page's process serves all visitors. A file that passed costs it no more than the child; any other is one message to
its sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchsplit_core.files import UPLOAD_BYTES, measure, read_text, refuse_large
from torchsplit_core.isolation import ChildFault, Limits, private_temp_dir, run_limited, schema_reader
from torchsplit_core.values import InputFault, Progress

LARGEST_CONTRACT_BYTES = 192 * 2**20
"""Largest contract file from a browser."""
IN_PROCESS_BYTES = 64 * 2**10
"""Smaller files cost at most a few tens of MiB and are read without a child."""
MEMORY_BYTES = UPLOAD_BYTES + 512 * 2**20
"""Address space of the child; the interpreter and its libraries are within the 512 MiB."""
LIMITS = Limits(wall_s=60.0, cpu_s=60, memory_bytes=MEMORY_BYTES, file_bytes=0, open_files=64)
READ_TARGET = "torchsplit_core.workspace.untrusted_files:read_in_child"


def read_contract(data: bytes, origin: str) -> tuple[str, Any]:
    """A contract file's format name and value.

    Raises InputFault if it is none, or reading it would exceed the limits.
    """
    if not data:
        raise InputFault(origin, "is empty", "Choose another file.")
    if len(data) > LARGEST_CONTRACT_BYTES:
        raise InputFault(
            origin,
            f"has {len(data)} bytes, more than the {LARGEST_CONTRACT_BYTES >> 20} MiB that are read here",
            "Pass it to the command line.",
        )
    refuse_large(measure(data).read_bytes, UPLOAD_BYTES, origin)
    if len(data) > IN_PROCESS_BYTES:
        run_on_file(READ_TARGET, data, {"origin": origin}, subject=origin)
    return _read(data, origin)


def read_in_child(arguments: dict[str, Any], _progress: Progress) -> None:
    """For `isolation.run_limited`: read the file `arguments["source"]`; its fault is the result."""
    _read(Path(arguments["source"]).read_bytes(), arguments["origin"])


def run_on_file(
    target: str, data: bytes, arguments: Mapping[str, Any], *, subject: str, limits: Limits = LIMITS
) -> None:
    """Call a function without a result, with `data` in the file named by its argument `source`.

    Raises the child's InputFault, or one that names the limit that the child exceeded.
    """
    with private_temp_dir() as folder:
        file = folder / "source"
        file.write_bytes(data)
        try:
            run_limited(
                target, {**arguments, "source": str(file)}, limits=limits, subject=subject,
                read=schema_reader(None), readable=[file],
            )  # fmt: skip
        except ChildFault as fault:
            problem = {
                "out_of_memory": f"needs more than {UPLOAD_BYTES >> 20} MiB of memory to be read",
                "time_limit": f"takes longer than {limits.wall_s:g} s to be read",
                "crashed": "cannot be read: its reader ended early",
            }[fault.kind]
            raise InputFault(subject, problem, "Split the file.") from fault


def _read(data: bytes, origin: str) -> tuple[str, Any]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFault(origin, "is not text in UTF-8", "Choose another file.") from error
    return read_text(text, origin=origin, memory_bytes=UPLOAD_BYTES)
