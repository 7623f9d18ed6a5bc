"""The journal of a change on one host: how far it has come, on disk before and after every step.

It stays when the change is done, so that the change can be undone and applied again without effect.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from torchsplit_core import files
from torchsplit_core.apply.standing import step_words
from torchsplit_core.values import HostState, InputFault, Transition, quoted, system_reason

FORMAT = "torchsplit.apply_journal"

Goal = Literal["new", "old"]
"""The state that the change goes to: the plan's, or back to that before the first step."""


@dataclass(frozen=True, slots=True)
class ApplyJournal:
    """A change of one host. `state`: its GPUs before the first step, all with UUIDs; `transition`: its steps only.

    `position` steps are done. `doing`: the index of the step under way or cut off, which may be done in part.
    `switches_mig_mode`: MIG mode may be switched, and so switched back.
    """

    host: str
    plan_sha256: str
    goal: Goal
    position: int
    doing: int | None
    state: HostState
    transition: Transition
    switches_mig_mode: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether its goal is reached."""
        return self.doing is None and self.position == self.end

    @property
    def end(self) -> int:
        """The position of its goal."""
        return len(self.transition.steps) if self.goal == "new" else 0

    def towards(self, goal: Goal) -> ApplyJournal:
        """The same change going to that state. A step that may be done in part is done, or undone, as a whole."""
        if self.doing is None:
            return replace(self, goal=goal)
        return replace(self, goal=goal, position=self.doing if goal == "new" else self.doing + 1)


def finished_words(journal: ApplyJournal) -> str:
    """How far a change has come."""
    count = len(journal.transition.steps)
    done = f"{journal.position} of {count} steps {'is' if journal.position == 1 else 'are'} done"
    if journal.doing is None:
        return done
    return (
        f"{done}, step {journal.doing + 1} ({step_words(journal.transition.steps[journal.doing])}) was begun"
    )


def default_folder() -> Path:
    """The folder `apply` of the user's state folder (XDG_STATE_HOME, else ~/.local/state)."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "torchsplit" / "apply"


def journal_path(folder: Path, host: str) -> Path:
    """The file of a host's journal; hosts whose names no file can have get one of their own all the same."""
    plain = re.sub(r"[^a-zA-Z0-9.-]", "_", host)[:100]
    suffix = "" if plain == host else f"-{sha256(host.encode()).hexdigest()[:12]}"
    return folder / f"{plain}{suffix}.journal.json"


def write_journal(journal: ApplyJournal, path: Path) -> None:
    """Replace the file, which is on disk when the call returns. Raises InputFault where that cannot be done."""
    data = {
        "format": FORMAT,
        "version": 1,
        "host": journal.host,
        "plan_sha256": journal.plan_sha256,
        "goal": journal.goal,
        "position": journal.position,
        "doing": journal.doing,
        "switches_mig_mode": journal.switches_mig_mode,
        "state": json.loads(files.write_text(journal.state)),
        "transition": json.loads(files.write_text(journal.transition)),
    }
    files.replace_file(path, json.dumps(data, indent=1) + "\n", 0o600)
    try:
        # The new name is on disk only with its folder.
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise InputFault(
            str(path), f"cannot be written: {system_reason(error)}", "Choose another --journal."
        ) from error


def read_journal(path: Path) -> ApplyJournal | None:
    """The journal of that file, None where there is none. Raises InputFault for a file that is not one."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise _damaged(path, reason) from error
    try:
        return _parsed(files.parse_json(text, str(path)))
    except InputFault as fault:
        raise _damaged(path, str(fault)) from fault
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"{error} is missing" if isinstance(error, KeyError) else str(error)) from error


def _parsed(data: Any) -> ApplyJournal:
    if (data["format"], data["version"]) != (FORMAT, 1):
        raise ValueError(f"not {FORMAT} version 1")
    state = files.read_text(json.dumps(data["state"]), origin="state", expected="torchsplit.host_state")[1]
    transition = files.read_text(
        json.dumps(data["transition"]), origin="transition", expected="torchsplit.transition"
    )[1]
    count = len(transition.steps)
    if data["goal"] not in get_args(Goal) or not all(
        isinstance(data[key], str) for key in ("host", "plan_sha256")
    ):
        raise ValueError(
            f"host or plan_sha256 is not text, or goal {quoted(data['goal'])} is neither new nor old"
        )
    for key, most in (("position", count), ("doing", count - 1)):
        value = data[key]
        if not (key == "doing" and value is None) and not (type(value) is int and 0 <= value <= most):
            raise ValueError(f"{key} is {quoted(value)}, not a number from 0 to {most}")
    # Journals of earlier versions have no such key.
    switches = data.get("switches_mig_mode", False)
    if not isinstance(switches, bool):
        raise ValueError(f"switches_mig_mode is {quoted(switches)}, neither true nor false")
    return ApplyJournal(
        data["host"],
        data["plan_sha256"],
        data["goal"],
        data["position"],
        data["doing"],
        state,
        transition,
        switches,
    )


def _damaged(path: Path, why: str) -> InputFault:
    return InputFault(
        str(path),
        f"is not a readable {FORMAT} file: {why}",
        "Compare `nvidia-smi mig -lgi` with what the GPUs should have, then remove the file, capture the host and "
        "apply the plan from that state.",
    )
