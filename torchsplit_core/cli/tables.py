"""The commands estimate, import and export, which work on tables.

The package `tables` is imported only when one of its commands runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchsplit_core import files
from torchsplit_core.cli.arguments.outputs import OutputFileOrFolder, output_option
from torchsplit_core.cli.common import Command, write_outcome
from torchsplit_core.values import InputFault, PlanRequest, Profile, system_reason
from torchsplit_core.values.errors import quoted

SHOWN_OUTLIERS = 5
"""Most outliers that are printed one by one."""


def add_table_commands(command: Command) -> None:
    """Add estimate, import and export to the command line through its `command(name, run)`."""
    parser = command("estimate", _estimate)
    parser.add_argument(
        "measured",
        metavar="MEASURED.csv",
        help="rows with throughput_rps and latency_ms; with --to also a plan request or a profile (JSON)",
    )
    parser.add_argument("query", nargs="?", metavar="QUERY.csv", help="rows without them")
    parser.add_argument(
        "--to",
        metavar="TYPE,…",
        help="in place of a query: rows of these GPU types, from those of others and published peaks, on every MIG "
        "profile and the whole GPU (TYPE:whole: that alone); of a request or profile the same with these points added",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "tf32", "fp16", "bf16", "fp8", "int8"),
        default="fp32",
        help="what the rows were measured in, with --to (default fp32 as PyTorch runs it: convolutions in TF32)",
    )
    parser.add_argument(
        "--gpu-type",
        default="A100-80GB",
        metavar="TYPE",
        help="of rows that name none, with --to (default A100-80GB)",
    )
    output_option(parser)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON to standard output")
    parser.add_argument("--skip-bad", action="store_true", help="leave out measured rows that cannot be read")

    parser = command("import", _import)
    parser.add_argument("files", nargs="+", metavar="FILE", help="tables; one may be -")
    parser.add_argument(
        "-o",
        "--output",
        action=OutputFileOrFolder,
        metavar="FILE|DIR",
        help="a folder where there are several models",
    )
    parser.add_argument("--json", action="store_true", help="print the outcome to standard output")
    parser.add_argument(
        "--gpu-type",
        default="A100-80GB",
        metavar="TYPE",
        help="where the file names none (default A100-80GB)",
    )
    parser.add_argument(
        "--slice", metavar="3g.40gb", help="where the file names none (default: the whole GPU)"
    )
    parser.add_argument(
        "--map", action="append", default=[], metavar="OURS=THEIRS", help="batch_size=bs: their column is bs"
    )
    parser.add_argument("--model", metavar="NAME", help="where the file names none")
    parser.add_argument("--batch-size", type=int, metavar="N", help="where the file names none")
    parser.add_argument(
        "--instances", type=int, default=1, metavar="N", help="of the model on the server (perf_analyzer)"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that cannot be read")

    parser = command("export", _export)
    parser.add_argument(
        "profiles",
        nargs="+",
        metavar="PROFILE",
        help="FILE.json; library or library:NAME for the measured A100 rows",
    )
    output_option(parser)


def _estimate(options: argparse.Namespace) -> int:
    if (options.query is None) == (options.to is None):
        raise InputFault(
            "QUERY.csv",
            "is missing" if options.to is None else "is given, and --to too",
            "Name the rows to predict, or the GPU types to estimate: --to H100-SXM5-80GB.",
        )
    # The matrices are small, and on a busy host OpenBLAS's threads would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.to is not None:
        return _estimate_types(options)
    from torchsplit_core.tables.estimated_table import estimate_table

    table = estimate_table(
        read_table(options.measured),
        read_table(options.query),
        measured_origin=options.measured,
        query_origin=options.query,
        skip_bad=options.skip_bad,
    )
    if options.output:
        files.replace_file(Path(options.output), table.csv_text())
    if options.json:
        sys.stdout.write(table.json_text())
    elif not options.output:
        sys.stdout.write(table.csv_text())
    _tell(table.notes)
    print(table.summary, file=sys.stderr)
    for far in table.outliers[:SHOWN_OUTLIERS]:
        row = far.sample
        print(
            f"far off: {row.model}, {row.size:g} slices, batch {row.batch_size}, {row.processes} processes: "
            f"{row.throughput_rps:.4g} requests/s, the other rows say {far.low_rps:.4g} to {far.high_rps:.4g}",
            file=sys.stderr,
        )
    return 0


def _estimate_types(options: argparse.Namespace) -> int:
    """Estimate rows of other GPU types; write them as a table, or the given request or profile with points added."""
    from torchsplit_core import workflow

    to = [name.strip() for name in options.to.split(",") if name.strip()]
    if not to:
        raise InputFault("--to", f"{quoted(options.to)} names no GPU type", "Write for example --to L4-24GB.")
    text = read_table(options.measured)
    if text.lstrip("\ufeff").lstrip().startswith("{"):
        kind, value = files.read_text(text, origin=options.measured)
        if isinstance(value, PlanRequest):
            grown, notes = workflow.with_estimated_points(value, to, options.precision)
            added = sum(len(model.points) for model in grown.models)
            added -= sum(len(model.points) for model in value.models)
            write_outcome(grown, options)
        elif isinstance(value, Profile):
            (rows,), notes = workflow.estimated_rows([value], to, options.precision)
            added = len(rows)
            write_outcome(replace(value, rows=(*value.rows, *rows)), options)
        else:
            raise InputFault(options.measured, f"is a {kind}", "Give a table, a plan request or a profile.")
    else:
        notes, added = _estimate_table_types(text, to, options)
    _tell(notes)
    print(f"estimated for {', '.join(to)}: {added} points, none of them measured", file=sys.stderr)
    return 0


def _estimate_table_types(
    text: str, to: Sequence[str], options: argparse.Namespace
) -> tuple[tuple[str, ...], int]:
    """Write the estimated rows of a table. Returns the notes and the number of rows."""
    from torchsplit_core import workflow
    from torchsplit_core.tables import read_profile_csv
    from torchsplit_core.tables.write_csv import estimated_records, format_records

    read = read_profile_csv(
        text, gpu_type=options.gpu_type, origin=options.measured, skip_bad=options.skip_bad
    )
    rows, notes = workflow.estimated_rows(read.profiles, to, options.precision)
    columns, records = estimated_records(text, read.profiles, rows, options.measured)
    if options.output:
        files.replace_file(Path(options.output), format_records(columns, records))
    if options.json:
        listed = [{name: record.get(name) for name in columns} for record in records]
        sys.stdout.write(json.dumps(listed, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    elif not options.output:
        sys.stdout.write(format_records(columns, records))
    return (*read.notes, *notes), len(records)


def _import(options: argparse.Namespace) -> int:
    from torchsplit_core.tables import merge_profiles, read_any

    collected: list[Profile] = []
    for path in options.files:
        imported = read_any(
            read_table(path),
            mapping=_mapping(options.map),
            gpu_type=options.gpu_type,
            slice_name=options.slice,
            model=options.model,
            batch_size=options.batch_size,
            instances=options.instances,
            origin=path,
            skip_bad=options.skip_bad,
        )
        _tell(imported.notes, path)
        collected += imported.profiles
    profiles = merge_profiles(collected)
    if len(profiles) == 1:
        _hand_over_one(profiles[0], options)
    else:
        _hand_over_several(profiles, options)
    _tell_counts(profiles)
    return 0


def _tell_counts(profiles: Sequence[Profile]) -> None:
    rows = sum(len(profile.rows) for profile in profiles)
    failures = sum(len(profile.failures) for profile in profiles)
    print(f"profiles: {len(profiles)}, rows: {rows}, failures: {failures}", file=sys.stderr)


def _hand_over_one(profile: Profile, options: argparse.Namespace) -> None:
    if options.output:
        path = Path(options.output)
        files.replace_file(path / file_name(profile) if path.is_dir() else path, files.write_text(profile))
    if options.json or not options.output:
        sys.stdout.write(files.write_text(profile))


def _hand_over_several(profiles: Sequence[Profile], options: argparse.Namespace) -> None:
    """Write one file per model into the folder; with --json print a list of the profiles."""
    if options.output:
        folder = Path(options.output)
        if folder.suffix == ".json" or folder.is_file():
            raise InputFault(
                "-o",
                f"{quoted(options.output)} is one file, and {len(profiles)} models make a file each",
                "Give a folder, for example -o profiles/.",
            )
        names: list[str] = []
        for profile in profiles:
            names.append(file_name(profile, names))
            files.replace_file(folder / names[-1], files.write_text(profile))
            print(folder / names[-1], file=sys.stderr)
    elif not options.json:
        raise InputFault(
            "-o", f"is missing, and {len(profiles)} models make a file each", "Give a folder: -o profiles/."
        )
    if options.json:
        documents = [json.loads(files.write_text(profile)) for profile in profiles]
        sys.stdout.write(json.dumps(documents, indent=1, ensure_ascii=False) + "\n")


def file_name(profile: Profile, taken: Sequence[str] = ()) -> str:
    """A file name for the profile that is valid on every file system and not in `taken`."""
    stem = (
        re.sub(r"[^A-Za-z0-9._-]+", "_", profile.source.removeprefix("import:"))[:80].strip("._-") or "model"
    )
    used = {name.lower() for name in taken}
    number, name = 1, f"{stem}.profile.json"
    while name.lower() in used:
        number += 1
        name = f"{stem}-{number}.profile.json"
    return name


def _export(options: argparse.Namespace) -> int:
    from torchsplit_core.profiling.library import library_profile, library_profiles
    from torchsplit_core.tables import write_profile_csv

    profiles: list[Profile] = []
    for item in options.profiles:
        if item == "library":
            profiles += library_profiles()
        elif item.startswith("library:"):
            profiles.append(library_profile(item.removeprefix("library:")))
        else:
            profiles.append(files.read_file(item, expected="torchsplit.profile")[1])
    text = write_profile_csv(profiles)
    if options.output:
        files.replace_file(Path(options.output), text)
    else:
        sys.stdout.write(text)
    _tell_counts(profiles)
    return 0


def read_table(path: str) -> str:
    """A table's text (`-`: standard input). Raises InputFault if it cannot be read, is too large or is not text."""
    from torchsplit_core.files.contract import STANDARD_STREAM, origin_of, standard_input
    from torchsplit_core.tables import LARGEST_TABLE_BYTES, decode

    if path == STANDARD_STREAM:
        return decode(standard_input(LARGEST_TABLE_BYTES), origin_of(path))
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(LARGEST_TABLE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        raise InputFault(path, f"cannot be read: {reason}", "Check the path.") from error
    return decode(data, path)


def _mapping(entries: Sequence[str]) -> dict[str, str]:
    """Parse `batch_size=bs` entries; the file's column may contain any characters, also = and commas."""
    mapping = {}
    for entry in entries:
        ours, separator, theirs = entry.partition("=")
        if not separator or not ours.strip():
            raise InputFault(
                "--map", f"{quoted(entry)} is not OURS=THEIRS", "Write for example batch_size=bs."
            )
        mapping[ours.strip()] = theirs.strip()
    return mapping


def _tell(notes: Sequence[str], origin: str = "") -> None:
    for note in notes:
        print(f"note: {origin + ': ' if origin else ''}{note}", file=sys.stderr)
