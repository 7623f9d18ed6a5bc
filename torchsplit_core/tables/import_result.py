"""The result of an import, and the fault that lists every bad row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from torchsplit_core.tables.cell_parsing import BadCell
from torchsplit_core.values import InputFault, Profile, ProfileFailure, ProfileRow

SHOWN_BAD_ROWS = 20
"""Most bad rows that a message lists; it counts the others."""

PREFIX = "import:"
"""Prefix of an imported profile's source; the model's name follows."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The profiles (one per model, in the file's order), notes for the user, and the rows left out."""

    profiles: tuple[Profile, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[BadCell, ...] = ()


def report_bad_rows(
    bad: Sequence[BadCell], good: int, origin: str, *, skip_bad: bool | None
) -> tuple[str, ...]:
    """Notes on the rows left out. Raises InputFault for bad rows, unless `skip_bad` is set and good rows remain.

    One fault names all bad rows, so that the user can correct the file in one pass. `skip_bad` None: they can never
    be left out, so the message does not offer it.
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
    """One profile per model, rows and failures in the order of the file."""
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
