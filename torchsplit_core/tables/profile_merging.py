"""Merges a model's profiles from several files: a load generator writes one file per batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from torchsplit_core.tables.row_parsing import describe_point
from torchsplit_core.values import InputFault, Profile, ProfileFailure, ProfileRow

Entry = TypeVar("Entry", bound=ProfileRow | ProfileFailure)


def merge_profiles(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """One profile per source, in the order in which the sources first appear; a single one is returned unchanged.

    Rows and failures are joined without duplicates. Raises InputFault if two profiles of one source have different
    figures for a point, or different architectures.
    """
    by_source: dict[str, list[Profile]] = {}
    for profile in profiles:
        by_source.setdefault(profile.source, []).append(profile)
    return tuple(_merge_one_source(same_source) for same_source in by_source.values())


def _merge_one_source(profiles: Sequence[Profile]) -> Profile:
    first = profiles[0]
    if len(profiles) == 1:
        return first
    hashes = dict.fromkeys(profile.architecture_hash for profile in profiles if profile.architecture_hash)
    if len(hashes) > 1:
        raise InputFault(
            first.source,
            f"has profiles of {len(hashes)} architectures",
            "Import each architecture into a file of its own.",
        )
    origins = dict.fromkeys(str(profile.environment.get("origin", profile.source)) for profile in profiles)
    return replace(
        first,
        architecture_hash=next(iter(hashes), ""),
        environment={**first.environment, "origin": ", ".join(origins)},
        rows=_join_entries(first.source, [row for profile in profiles for row in profile.rows]),
        nodes=next((profile.nodes for profile in profiles if profile.nodes), ()),
        failures=_join_entries(first.source, [item for profile in profiles for item in profile.failures]),
    )


def _join_entries(source: str, entries: Sequence[Entry]) -> tuple[Entry, ...]:
    by_point: dict[tuple[object, ...], Entry] = {}
    for entry in entries:
        basis = entry.basis if isinstance(entry, ProfileRow) else ""
        point = (entry.stage, entry.gpu_type, entry.profile, entry.batch_size, entry.processes)
        known = by_point.setdefault((*point, basis, entry.device, entry.sequence_length), entry)
        if known != entry:
            raise InputFault(
                source,
                f"has two measurements of {describe_point(entry)}",
                "Remove one of them.",
            )
    return tuple(by_point.values())
