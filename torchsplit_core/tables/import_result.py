"""What an import gives, and the one fault that lists every bad row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from torchsplit_core.tables.cell_parsing import BadCell
from torchsplit_core.values import InputFault, Profile, ProfileFailure, ProfileRow

SHOWN_BAD_ROWS = 20
"""A message lists this many bad rows and counts the others."""

PREFIX = "import:"
"""An imported profile's source is this and the model's name."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The profiles read (one a model, in the file's order), what their user must know, and the rows left out."""

    profiles: tuple[Profile, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[BadCell, ...] = ()


def report_bad_rows(
    bad: Sequence[BadCell], good: int, origin: str, *, skip_bad: bool | None
) -> tuple[str, ...]:
    """Notes on the rows left out. Raises InputFault unless they may be left out and some are left.

    One fault names the bad rows together: a file is mended in one go, not in as many as it has faults. `skip_bad`
    None: they can never be left out, so the message does not offer it.
    """
    if not bad:
        return ()
    lines = [item.sentence for item in bad[:SHOWN_BAD_ROWS]]
    if len(bad) > SHOWN_BAD_ROWS:
        lines.append(f"… and {len(bad) - SHOWN_BAD_ROWS} more")
    if skip_bad and good:
        return (f"{len(bad)} of {len(bad) + good} rows were left out", *lines)
    may_skip = good and skip_bad is not None
    raise InputFault(
        origin,
        f"{len(bad)} of {len(bad) + good} rows cannot be read:\n  "
        + "\n  ".join(lines)
        + "\nNothing was written",
        "Correct these rows, or leave them out with --skip-bad." if may_skip else "Correct these rows.",
    )


def group_profiles(
    entries: Sequence[tuple[str, ProfileRow | ProfileFailure]], origin: str
) -> tuple[Profile, ...]:
    """One profile a model, rows and failures in the order of the file."""
    rows: dict[str, list[ProfileRow]] = {}
    failures: dict[str, list[ProfileFailure]] = {}
    for model, entry in entries:
        rows.setdefault(model, [])
        failures.setdefault(model, [])
        if isinstance(entry, ProfileRow):
            rows[model].append(entry)
        else:
            failures[model].append(entry)
    environment = {"origin": origin, "imported_at": datetime.now(UTC).isoformat(timespec="seconds")}
    return tuple(
        Profile(
            source=PREFIX + model,
            architecture_hash="",
            environment=environment,
            rows=tuple(rows[model]),
            failures=tuple(failures[model]),
        )
        for model in rows
    )
