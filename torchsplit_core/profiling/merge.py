"""One profile of a model from several measurements, an older profile and estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torchsplit_core.profiling.measured_model import MeasuredModel, slowest_row
from torchsplit_core.profiling.roofline import estimated_nodes
from torchsplit_core.values import Profile, ProfileFailure, ProfileRow, sequence_lengths

Key = tuple[str, str, str | None, int, int, int | None]
"""Stage, GPU type, slice, batch size, processes, sequence length: the key of a profile's point."""


def merge(source: str, measurements: Sequence[MeasuredModel], estimated: Sequence[ProfileRow]) -> Profile:
    """The measurements of one model first, then the estimates of what was not measured.

    `measurements` has one entry a device, at least one. Rows of one key from several devices (two slices of one
    profile) become the slower one, with an interval that spans both; emulated rows yield to measured ones.
    """
    graph = measurements[0].graph
    by_key: dict[Key, list[ProfileRow]] = {}
    for row in (row for measurement in measurements for row in measurement.rows):
        by_key.setdefault(_key(row), []).append(row)
    rows = {key: slowest_row(_best_basis_rows(several)) for key, several in by_key.items()}
    nodes = next(
        (measurement.nodes for measurement in sorted(measurements, key=_on_processor) if measurement.nodes),
        (),
    )
    notes = [
        note if len(measurements) == 1 else f"{_device_of(measurement)}: {note}"
        for measurement in measurements
        for note in measurement.notes
    ]
    shared = {
        name: measurements[0].environment[name]
        for name in ("torch", "python", "platform", "seed", "eval_mode")
    }
    environment = shared | {
        "nodes_basis": "measured" if nodes else "estimated",
        "nodes_batch_size": graph.traced_batch,
        "notes": " ".join(notes),
        "taken_over": sum(len(measurement.environment["taken_over"]) for measurement in measurements),
        "devices": {_device_of(measurement): dict(measurement.environment) for measurement in measurements},
    }
    if old := sum(len(measurement.environment.get("old_points", ())) for measurement in measurements):
        environment["old_points"] = old
    failures = [item for measurement in measurements for item in measurement.failures]
    return Profile(
        source=source,
        architecture_hash=graph.architecture_hash,
        environment=environment,
        rows=_with_estimates(rows.values(), failures, estimated),
        nodes=nodes or estimated_nodes(graph),
        failures=_unresolved_failures(failures, rows),
    )


def update_profile(older: Profile, newer: Profile) -> Profile:
    """The newer profile, plus the older one's other measured points of the same architecture."""
    if older.architecture_hash != newer.architecture_hash:
        return newer
    measured: dict[Key, ProfileRow] = {}
    for row in (row for profile in (older, newer) for row in profile.rows if row.basis != "estimated"):
        known = measured.get(_key(row))
        if known is None or known.basis == "emulated" or row.basis == "measured":
            measured[_key(row)] = row
    failures = {_key(item): item for profile in (older, newer) for item in profile.failures}
    environment = dict(newer.environment)
    devices = {**older.environment.get("devices", {}), **environment.get("devices", {})}
    nodes = newer.nodes
    if environment.get("nodes_basis") != "measured" and older.environment.get("nodes_basis") == "measured":
        nodes = older.nodes
        environment |= {
            "nodes_basis": "measured",
            "nodes_batch_size": older.environment.get("nodes_batch_size"),
        }
    # The newer one's estimates are of its first length, which therefore stays the first.
    lengths = (*sequence_lengths(newer), *sequence_lengths(older))
    by_length = sorted(measured.values(), key=lambda row: lengths.index(row.sequence_length))
    return replace(
        newer,
        environment=environment | ({"devices": devices} if devices else {}),
        rows=_with_estimates(by_length, failures.values(), newer.rows),
        nodes=nodes,
        failures=_unresolved_failures(failures.values(), measured),
    )


def combine_lengths(profiles: Sequence[Profile], lengths: Sequence[int]) -> Profile:
    """One profile of one model's runs at several sequence lengths, in order.

    Of the runs after the first only measurements and failures are taken: estimates and the operations' shares are the
    first one's. `environment["sequence_lengths"]` names the lengths, `nodes_sequence_length` the first.
    """
    first = profiles[0]
    notes = [
        f"Sequence length {length}: {profile.environment['notes']}"
        for length, profile in zip(lengths, profiles, strict=True)
        if profile.environment.get("notes")
    ]
    environment = {
        **first.environment,
        "sequence_lengths": list(lengths),
        "nodes_sequence_length": lengths[0],
        "notes": " ".join(notes),
    }
    for name in ("taken_over", "old_points"):
        if counts := [profile.environment[name] for profile in profiles if name in profile.environment]:
            environment[name] = sum(counts)
    measured = [row for profile in profiles[1:] for row in profile.rows if row.basis != "estimated"]
    return replace(
        first,
        environment=environment,
        rows=(*first.rows, *measured),
        failures=tuple(item for profile in profiles for item in profile.failures),
    )


def _best_basis_rows(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """The measured ones, or all if none was measured."""
    return [row for row in rows if row.basis == "measured"] or list(rows)


def _with_estimates(
    measured: Iterable[ProfileRow], failures: Iterable[ProfileFailure], estimated: Iterable[ProfileRow]
) -> tuple[ProfileRow, ...]:
    """Measured rows in order, then the estimates that neither a measurement nor a lack of memory rules out."""
    known = {_key(row): row for row in measured}
    taken = {*known, *(_key(item) for item in failures if item.reason == "out_of_memory")}
    missing_estimates = [row for row in estimated if row.basis == "estimated" and _key(row) not in taken]
    lengths = list(dict.fromkeys(row.sequence_length for row in known.values()))
    ordered = sorted(known.values(), key=lambda row: (lengths.index(row.sequence_length), _sort_key(row)))
    return (*ordered, *missing_estimates)


def _unresolved_failures(
    failures: Iterable[ProfileFailure], measured: Mapping[Key, ProfileRow]
) -> tuple[ProfileFailure, ...]:
    """Failures of points without any measurement."""
    return tuple({_key(item): item for item in failures if _key(item) not in measured}.values())


def _device_of(measurement: MeasuredModel) -> str:
    return str(measurement.environment["device_id"])


def _on_processor(measurement: MeasuredModel) -> bool:
    """Operations timed on a GPU predict other GPUs better than those of a processor."""
    return bool(measurement.rows) and measurement.rows[0].gpu_type == "CPU"


def _key(item: ProfileRow | ProfileFailure) -> Key:
    return (
        *(item.stage, item.gpu_type, item.profile, item.batch_size, item.processes),
        item.sequence_length,
    )


def _sort_key(row: ProfileRow) -> tuple[bool, str, str, int, int]:
    return row.gpu_type == "CPU", row.gpu_type, row.profile or "", row.processes, row.batch_size
