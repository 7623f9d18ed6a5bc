"""What a run was started with, stored in its folder so that it can be resumed from there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from torchsplit_core.files import replace_file
from torchsplit_core.training.run_folder import WATCH
from torchsplit_core.values import InputFault, system_reason
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy

LAUNCH = "launch.json"
MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """The source as given, the strategy fitted to the processes of the start, and the options."""

    source: str
    strategy: RunStrategy
    options: RunOptions


def save_launch(run: Path, launch: LaunchRecord) -> None:
    """Write what the run was started with. Raises InputFault if it cannot be written."""
    replace_file(run / WATCH / LAUNCH, json.dumps(asdict(launch), indent=1) + "\n")


def read_launch(run: Path) -> LaunchRecord | None:
    """What the run was started with; None if nothing was stored (a user's own loop, an earlier version).

    Raises InputFault for a file that is not what a run writes.
    """
    # Imported here: a process that only starts ranks does not read it.
    from pydantic import TypeAdapter, ValidationError

    path = run / WATCH / LAUNCH
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _unreadable(path, f"it has more than {MOST_BYTES:,} bytes")
        return TypeAdapter(LaunchRecord).validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "it is not what a run writes"
        raise _unreadable(path, reason) from error


def _unreadable(path: Path, why: str) -> InputFault:
    return InputFault(
        str(path), f"cannot be read: {why}", "Go on with the run on the command line, by --resume."
    )
