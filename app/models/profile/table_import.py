"""The tab Import: a table of measurements, or a profile file, becomes a profile of this workspace."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pandas as pd
import streamlit as st

from app.models.profile.rows import CPU
from app.session import dropped_files
from app.session.workspace import names, read
from app.shell import frame, widgets
from torchsplit_core import tables
from torchsplit_core.hardware import catalogue, plain_profiles
from torchsplit_core.pictures.numbers import escape_markdown, exact
from torchsplit_core.profiling.library import library_profiles
from torchsplit_core.tables import COLUMNS, Imported, Sheet
from torchsplit_core.values import InputFault, Profile
from torchsplit_core.values.errors import quoted
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.untrusted_files import read_contract

PREVIEW_ROWS = 8
MAPPED = COLUMNS[:9]
"""The columns that the user maps; further columns are taken by their names."""
NOT_THERE = "not in the file"
WHOLE = "the whole GPU"
UPLOADER = "profile-import-file"
KINDS = {
    "model_analyzer": "Triton Model Analyzer's table",
    "perf_analyzer": "perf_analyzer's table",
    "profiles": "a table of measurements",
}


def render(workspace: Workspace) -> None:
    """The whole tab."""
    st.markdown(
        "Figures measured elsewhere: a CSV with one row a point, Triton's CSV files, or a profile of TorchSplit."
    )
    label, types = "A .csv or .tsv table, or a .json profile", ["csv", "tsv", "txt", "json"]
    file = st.file_uploader(label, type=types, key=UPLOADER, max_upload_size=192)
    if file is None:
        st.caption(
            "The columns can have any names: they are mapped here. A throughput of 0 says that memory did not suffice."
        )
        _library(workspace)
        return
    with frame.fault_boundary():
        text = _decode(file.getvalue(), file.name)
        kind = tables.detect(text, file.name)
        if kind == "json":
            _import_json(workspace, file.name, file.getvalue().removeprefix(codecs.BOM_UTF8))
            return
        _table(workspace, file.name, text, kind)


def _library(workspace: Workspace) -> None:
    """The button that adds the measurements that ship with TorchSplit."""
    profiles = library_profiles()
    if all(profile.source in names(workspace, "profile") for profile in profiles):
        return
    rows = sum(len(profile.rows) for profile in profiles)
    with st.container(border=True):
        st.markdown(
            f"**No figures at hand?** {len(profiles)} models measured on the MIG slices of an A100-80GB ship with "
            f"TorchSplit: {exact(rows)} rows (ParvaGPU, SC'24; MIT)."
        )
        if st.button("Add the measured A100 library", key="profile-import-library"):
            for profile in profiles:
                workspace.put("profile", profile.source, profile)
            frame.notify(f"Added {len(profiles)} profiles with {exact(rows)} rows.")
            st.rerun()


@st.cache_data(max_entries=4, show_spinner="Reading the file")
def _decode(data: bytes, name: str) -> str:
    return tables.decode(data, name)


@st.cache_data(max_entries=4, show_spinner="Reading the table")
def _sheet(text: str, name: str) -> Sheet:
    return tables.read_sheet(text, name)


@st.cache_resource(max_entries=4, show_spinner="Reading the file")
def _contract(data: bytes, name: str) -> tuple[str, Any]:
    return read_contract(data, name)


def _import_json(workspace: Workspace, name: str, data: bytes) -> None:
    """Show what a contract file is, and store it on demand. Raises InputFault for any other JSON."""
    form, value = _contract(data, name)
    what = form.removeprefix("torchsplit.").replace("_", " ")
    if isinstance(value, Profile):
        what += f" of {escape_markdown(value.source)}: {exact(len(value.rows))} rows"
    st.markdown(f"**{escape_markdown(name)}** is a {what}.")
    if st.button("Import this file", type="primary", key="profile-import-json"):
        artifact = dropped_files.store_dropped(workspace, name, data)
        frame.notify(f"Stored {name} as {artifact.kind.replace('_', ' ')} {artifact.name}.")
        st.rerun()


def _table(workspace: Workspace, name: str, text: str, kind: str) -> None:
    sheet = _sheet(text, name)
    st.markdown(
        f"**{escape_markdown(name)}** is {KINDS[kind]}: {exact(len(sheet.records))} rows, {len(sheet.header)} columns."
    )
    st.dataframe(_preview(sheet), hide_index=True, alt=f"The first rows of {name}")
    mapping = _mapping(sheet) if kind == "profiles" else None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        kinds = [*catalogue(), CPU]
        gpu_type = widgets.single_choice("Measured on", kinds, "A100-80GB", "profile-import-gpu")
        known = () if gpu_type == CPU else plain_profiles(catalogue()[gpu_type])
        slice_name, model, batch, instances = None, None, None, 1
        if not (mapping or {}).get("profile") and not (mapping or {}).get("compute_slices"):
            slices = [WHOLE, *(slice_profile.name for slice_profile in known)]
            chosen = widgets.single_choice("Slice", slices, WHOLE, "profile-import-slice")
            slice_name = None if chosen == WHOLE else chosen
        if kind == "perf_analyzer" or (mapping is not None and not mapping["model"]):
            stem = PurePath(name).stem
            model = st.text_input("Model", stem, key=f"profile-import-model-{stem}")
        if kind == "perf_analyzer" or (mapping is not None and not mapping["batch_size"]):
            batch = int(st.number_input("Batch size (-b)", 1, 4096, 1, key="profile-import-batch"))
        if kind == "perf_analyzer":
            instances = int(st.number_input("Instances", 1, 64, 1, key="profile-import-instances"))
    label = "Leave out rows that cannot be read, and import the others"
    about = "Without it a row at fault stops the import, and nothing is stored."
    skip = st.checkbox(label, key="profile-import-skip", help=about)
    if not st.button("Import", type="primary", key="profile-import"):
        return
    try:
        imported = tables.read_any(
            text, mapping=mapping, gpu_type=gpu_type, slice_name=slice_name, model=model or None, batch_size=batch,
            instances=instances, origin=name, skip_bad=skip,
        )  # fmt: skip
    except InputFault as fault:
        st.error(describe_fault(fault))
        return
    stored = store(workspace, imported, PurePath(name).stem)
    frame.notify(summary(imported, stored))
    for note in imported.notes:
        frame.notify(note)
    st.rerun()


def describe_fault(fault: InputFault) -> str:
    """A table's fault with a line for each row at fault, in the words of this page, not of the command line."""
    text = str(fault).replace("leave them out with --skip-bad", "tick the box above to leave them out")
    lines = text.replace("Nothing was written", "Nothing was stored").splitlines()
    return "  \n".join(escape_markdown(line.strip()) for line in lines)


def _preview(sheet: Sheet) -> pd.DataFrame:
    """The first rows as text; a repeated header gets a number."""
    width = len(sheet.header)
    header = [
        f"{text} ({index})" if sheet.header.count(text) > 1 else text or f"column {index}"
        for index, text in enumerate(sheet.header, 1)
    ]
    filler = [""] * width
    cells = [[*record.cells, *filler][:width] for record in sheet.records[:PREVIEW_ROWS]]
    return pd.DataFrame(cells, columns=header, dtype=str)


def _mapping(sheet: Sheet) -> dict[str, str]:
    """Which column of the file is which of TorchSplit's, with a guess to begin with."""
    guess = tables.guess_mapping(sheet.header)
    options = [NOT_THERE, *dict.fromkeys(text for text in sheet.header if text)]
    mapping = {}
    identity = abs(hash(sheet.header))
    for start in range(0, len(MAPPED), 3):
        for column, holder in zip(MAPPED[start : start + 3], st.columns(3), strict=True):
            with holder:
                label = column.name.replace("_", " ") + ("" if column.required else " (optional)")
                first, key = guess.get(column.name, NOT_THERE), f"profile-import-{column.name}-{identity}"
                chosen = widgets.single_choice(label, options, first, key, help=column.meaning)
            mapping[column.name] = "" if chosen == NOT_THERE else chosen
    return mapping


def store(workspace: Workspace, imported: Imported, stem: str) -> tuple[str, ...]:
    """Store the profiles under `profile_name`; the names."""
    stored = []
    for profile in imported.profiles:
        name = profile_name(workspace, profile, stem)
        workspace.put("profile", name, replace(profile, source=name))
        stored.append(name)
    return tuple(stored)


def profile_name(workspace: Workspace, profile: Profile, stem: str) -> str:
    """The profile's name; if a profile with other figures has it, the file's name is added."""
    taken = set(names(workspace, "profile"))
    name = profile.source[:120].strip()
    tries = (name, f"{name[:60]} ({stem[:40]})", *(f"{name[:60]} ({stem[:40]}, {n})" for n in range(2, 1000)))
    for candidate in tries:
        if candidate not in taken:
            return candidate
        known: Profile = read(workspace, "profile", candidate)
        if (known.rows, known.failures) == (profile.rows, profile.failures):
            return candidate
    raise InputFault("import", f"no name is free for {quoted(name)}", "Remove imports that are not needed.")


def summary(imported: Imported, stored: Sequence[str]) -> str:
    """The result of an import in one sentence."""
    rows = sum(len(profile.rows) for profile in imported.profiles)
    failed = sum(len(profile.failures) for profile in imported.profiles)
    tail = f" and {failed} points that failed" if failed else ""
    left = f"; {len(imported.refused)} rows were left out" if imported.refused else ""
    return f"Imported {rows} rows{tail} as {', '.join(stored[:4])}{' …' if len(stored) > 4 else ''}{left}."
