"""Complete checkpoints: one folder each, which gets its name only when all of it is on disk and can be checked.

`step-00000050/` holds what torch's distributed checkpoint wrote, and `manifest.json` with the size and SHA-256 of every
file; until then it is `.step-00000050.partial/`. `LATEST` names the newest one, `best.json` the best one.
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

from torchsplit_core.checkpoints.trained_run import BEST, complete_steps, read_best, step_name
from torchsplit_core.files import replace_file
from torchsplit_core.values import InputFault, quoted, system_reason
from torchsplit_core.values.limits import LARGEST_WHOLE

MANIFEST, LATEST = "manifest.json", "LATEST"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint contains. `files`: size in bytes and SHA-256 by name; `samples`: trained on so far, in all."""

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
    """The checkpoints of a run: the newest `keep`, and the best. `best`: the best step so far, None without one."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self.best = read_best(folder.parent)

    def partial_folder(self, step: int) -> Path:
        """The folder in which that step's checkpoint is written until it is complete."""
        return self.folder / f".{step_name(step)}.partial"

    def path_of(self, step: int) -> Path:
        """The folder of that step's complete checkpoint."""
        return self.folder / step_name(step)

    def discard_after(self, step: int) -> None:
        """Remove incomplete checkpoints and those after `step`, whose steps are repeated; LATEST then names `step`.

        A run may have ended after it named a checkpoint and before it wrote LATEST, or LATEST may name a damaged one.
        """
        for later in self.steps():
            if later > step:
                self._remove(later)
        if self.best and self.best.step not in self.steps():
            (self.folder / BEST).unlink(missing_ok=True)
            self.best = None
        for path in self.folder.glob(".step-*.partial"):
            shutil.rmtree(path, ignore_errors=True)
        if step:
            replace_file(self.folder / LATEST, f"{step_name(step)}\n")

    def _remove(self, step: int) -> None:
        """Rename the folder first: a half-removed checkpoint must not look complete."""
        shutil.rmtree(self.partial_folder(step), ignore_errors=True)
        with contextlib.suppress(OSError):
            (self.folder / step_name(step)).rename(self.partial_folder(step))
        shutil.rmtree(self.partial_folder(step), ignore_errors=True)

    def discard_partial(self, step: int) -> None:
        """Remove a checkpoint that could not be completed."""
        shutil.rmtree(self.partial_folder(step), ignore_errors=True)

    def publish(self, manifest: Manifest) -> Path:
        """Make the partial folder the newest complete checkpoint, and remove the oldest. Raises OSError."""
        partial, complete = self.partial_folder(manifest.step), self.folder / step_name(manifest.step)
        files = {path.name: (path.stat().st_size, _sha256(path)) for path in sorted(partial.iterdir())}
        text = json.dumps({**asdict(manifest), "files": files}, indent=1) + "\n"
        with (partial / MANIFEST).open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        _sync_folder(partial)
        partial.rename(complete)
        _sync_folder(self.folder)
        replace_file(self.folder / LATEST, f"{complete.name}\n")
        if self.best and self.best.step == manifest.step:
            replace_file(self.folder / BEST, json.dumps(asdict(self.best)) + "\n")
        # The best one by the file: a better one that could not be written does not take its place.
        best = read_best(self.folder.parent)
        for step in self.steps()[: -self.keep]:
            if best is None or step != best.step:
                self._remove(step)
        return complete

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, ascending."""
        return complete_steps(self.folder)

    def newest(self, on_damaged: Callable[[str], None]) -> tuple[Path, Manifest] | None:
        """The newest intact checkpoint, or None if there is none yet; calls `on_damaged` for each damaged one.

        Raises InputFault if all are damaged.
        """
        damaged = []
        for step in reversed(self.steps()):
            path = self.path_of(step)
            try:
                return path, read_manifest(path)
            except InputFault as fault:
                damaged.append(f"{path.name}: {fault.problem}")
                on_damaged(str(fault))
        if damaged:
            raise InputFault(
                str(self.folder), f"holds no complete checkpoint: {'; '.join(damaged)}", "Start another run."
            )
        return None


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint, after a check of every file against it. Raises InputFault if one differs."""
    try:
        data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(
            **{
                **data,
                "files": {name: tuple(size_and_digest) for name, size_and_digest in data["files"].items()},
            }
        )
        _check_types(manifest)
        if path.name != step_name(manifest.step):
            raise ValueError("step")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "it is not the list of the files"
        raise _damaged(path, MANIFEST, f"cannot be read: {reason}") from error
    for name, (size, digest) in manifest.files.items():
        try:
            if Path(name).name != name or ((path / name).exists() and not (path / name).is_file()):
                raise _damaged(path, MANIFEST, f"names {quoted(name)}, which is no file beside it")
            actual = (path / name).stat().st_size
            if actual != size:
                raise _damaged(path, name, f"has {actual} of {size} bytes")
            if _sha256(path / name) != digest:
                raise _damaged(path, name, "has another content than was written")
        except OSError as error:
            raise _damaged(path, name, f"cannot be read: {system_reason(error)}") from error
    return manifest


def _check_types(manifest: Manifest) -> None:
    """Raises TypeError for a value of the wrong type, ValueError for a number out of range."""
    for item in fields(manifest):
        value = getattr(manifest, item.name)
        if item.name != "files" and type(value).__name__ != item.type:
            raise TypeError(item.name)
        minimum = -LARGEST_WHOLE if item.name == "seed" else 0
        if isinstance(value, int) and not minimum <= value <= LARGEST_WHOLE:
            raise ValueError(item.name)
    for size, digest in manifest.files.values():
        if not (isinstance(size, int) and isinstance(digest, str)):
            raise TypeError("files")


def _damaged(path: Path, name: str, how: str) -> InputFault:
    return InputFault(
        f"checkpoint {path.name}", f"{name} {how}", "The run goes on from an earlier one, if it has one."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
