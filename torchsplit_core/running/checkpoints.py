"""Complete checkpoints: a folder each, which has its name only when all of it is on disk and can be checked.

`step-00000050/` has what torch's distributed checkpoint wrote and `manifest.json`, with the size and SHA-256 of every
file; until then it is `.step-00000050.partial/`. `LATEST` has the name of the newest one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from torchsplit_core.files import replace_file
from torchsplit_core.values import InputFault, quoted, system_reason
from torchsplit_core.values.limits import LARGEST_WHOLE

MANIFEST, LATEST = "manifest.json", "LATEST"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is of. `files`: size in bytes and SHA-256 by name; `samples`: of the data, in all."""

    step: int
    epoch: int
    offset: int
    world_size: int
    global_batch: int
    samples: int
    seed: int
    model: str
    model_sha256: str
    torch_version: str
    files: dict[str, tuple[int, str]] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def room(self, step: int) -> Path:
        """Where the checkpoint of that step is written until it is complete."""
        return self.folder / f".{_name(step)}.partial"

    def sweep(self, step: int) -> None:
        """Remove what was begun and not completed, and what is of steps that are done again; LATEST names that step.

        A run may have ended between a checkpoint's name and LATEST, or LATEST name one that is damaged.
        """
        for one in self.steps():
            if one > step:
                self._remove(one)
        for path in self.folder.glob(".step-*.partial"):
            shutil.rmtree(path, ignore_errors=True)
        if step:
            replace_file(self.folder / LATEST, f"{_name(step)}\n")

    def _remove(self, step: int) -> None:
        """Without its name first: one that is half removed is none."""
        shutil.rmtree(self.room(step), ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.folder / _name(step)).rename(self.room(step))
        shutil.rmtree(self.room(step), ignore_errors=True)

    def drop(self, step: int) -> None:
        """Remove what was written of a checkpoint that could not be completed."""
        shutil.rmtree(self.room(step), ignore_errors=True)

    def publish(self, manifest: Manifest) -> Path:
        """Make the written room the newest complete checkpoint, and drop the oldest. Raises OSError."""
        room, complete = self.room(manifest.step), self.folder / _name(manifest.step)
        files = {one.name: (one.stat().st_size, _sha256(one)) for one in sorted(room.iterdir())}
        text = json.dumps({**asdict(manifest), "files": files}, indent=1) + "\n"
        with (room / MANIFEST).open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        _sync_folder(room)
        room.rename(complete)
        _sync_folder(self.folder)
        replace_file(self.folder / LATEST, f"{complete.name}\n")
        for step in self.steps()[: -self.keep]:
            self._remove(step)
        return complete

    def steps(self) -> list[int]:
        """The steps of the checkpoints that have a name, in order."""
        return sorted(int(one.name[5:]) for one in self.folder.glob("step-*") if one.name[5:].isdigit())

    def newest(self, told: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest complete checkpoint, None where there is none yet; `told` hears of each that is damaged.

        Raises InputFault where every one of them is damaged.
        """
        damaged = []
        for step in reversed(self.steps()):
            path = self.folder / _name(step)
            try:
                return path, checked(path)
            except InputFault as fault:
                damaged.append(f"{path.name}: {fault.problem}")
                told(str(fault))
        if damaged:
            raise InputFault(
                str(self.folder), f"holds no complete checkpoint: {'; '.join(damaged)}", "Start another run."
            )
        return None


def checked(path: Path) -> Manifest:
    """The manifest of a checkpoint of which every file is as it was written. Raises InputFault for any other."""
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(**{**data, "files": {name: tuple(told) for name, told in data["files"].items()}})
        _check_form(manifest)
        if path.name != _name(manifest.step):
            raise ValueError("step")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "it is not the list of the files"
        raise _damaged(path, MANIFEST, f"cannot be read: {reason}") from error
    for name, (size, digest) in manifest.files.items():
        try:
            if Path(name).name != name or ((path / name).exists() and not (path / name).is_file()):
                raise _damaged(path, MANIFEST, f"names {quoted(name)}, which is no file beside it")
            found = (path / name).stat().st_size
            if found != size:
                raise _damaged(path, name, f"has {found} of {size} bytes")
            if _sha256(path / name) != digest:
                raise _damaged(path, name, "has another content than was written")
        except OSError as error:
            raise _damaged(path, name, f"cannot be read: {system_reason(error)}") from error
    return manifest


def _check_form(manifest: Manifest) -> None:
    """Raises TypeError for a value of another type than it is written with, ValueError for a number out of range."""
    for one in fields(manifest):
        value = getattr(manifest, one.name)
        if one.name != "files" and type(value).__name__ != one.type:
            raise TypeError(one.name)
        least = -LARGEST_WHOLE if one.name == "seed" else 0
        if isinstance(value, int) and not least <= value <= LARGEST_WHOLE:
            raise ValueError(one.name)
    for size, digest in manifest.files.values():
        if not (isinstance(size, int) and isinstance(digest, str)):
            raise TypeError("files")


def _damaged(path: Path, name: str, how: str) -> InputFault:
    return InputFault(
        f"checkpoint {path.name}", f"{name} {how}", "The run goes on from an earlier one, if it has one."
    )


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
