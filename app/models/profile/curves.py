"""The tab Curves: throughput and service time of the chosen models and slices, and how sure the curves are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from operator import not_

import streamlit as st

from app.charts.curves import VIEWS, Line, View, curves
from app.models.profile import rows as profile_rows
from app.models.profile import table
from app.models.profile.fits import ProfileFit, fits
from app.models.profile.rows import Entry
from app.session import scenario
from app.session.workspace import read_artifact
from app.shell import widgets
from torchsplit_core.pictures.colours import UNKNOWN
from torchsplit_core.pictures.numbers import counted, escape_markdown, percent, short
from torchsplit_core.values import Profile
from torchsplit_core.workspace.store import Workspace

FIRST_MODELS, FIRST_PLACES = 4, 2
MOST_FAR_OFF = 8
MOST_PLACES = 6
"""A place that was measured or imported since joins a choice of fewer places."""
HELPS = 0.9
"""A measurement helps if it leaves at most this share of the uncertainty."""


def render(workspace: Workspace, profiles: Mapping[str, Profile]) -> None:
    """The whole tab."""
    left, right = st.columns([4, 12], gap="medium")
    with left, st.container(border=True):
        chosen, places, processes, view = _choice(profiles)
    with right:
        entries = [
            (name, row)
            for name in chosen
            for row in profiles[name].rows
            if profile_rows.place_of(row).label in places and row.processes in processes
        ]
        if not entries:
            st.info("No row fits this choice: choose a model, and a device it has rows for.")
            return
        model_fits = [fit for name in chosen for fit in _fits(workspace, name, tuple(processes))]
        shown = _lines(entries, model_fits, scenario.colours(workspace))
        with st.container(border=True):
            drawn = curves(shown, view, dark=widgets.is_dark())
            alt = f"{view}, a line a model and slice; the table below has the same figures"
            widgets.chart(drawn, "Curves", "profile-curves", key="profile-curves-chart", alt=alt)
            st.caption(
                "Filled: measured, with the 90 % interval of the mean. Diamond: emulated by a number of SMs. "
                "Hollow amber: estimated. Line and band: the curve fitted through measured points, and the 90 % "
                "interval of a new measurement."
            )
        _render_accuracy(model_fits, entries)
        _notes({name: profiles[name] for name in chosen})
        table.rows_behind(entries, "Rows behind the curves")


def _notes(profiles: Mapping[str, Profile]) -> None:
    """The notes of the measurements: clocks, leaks, NaN, points that failed."""
    notes = {name: str(profile.environment.get("notes") or "") for name, profile in profiles.items()}
    notes = {name: text for name, text in notes.items() if text}
    if notes:
        with st.expander(f"Notes of the measurements of {counted(len(notes), 'model')}"):
            for name, text in notes.items():
                st.caption(f"**{escape_markdown(name)}**: {escape_markdown(text)}")


def _choice(profiles: Mapping[str, Profile]) -> tuple[list[str], list[str], list[int], View]:
    st.header("Show", anchor=False)
    names = sorted(profiles)
    first, where = default_choice(profiles)
    chosen = widgets.multi_choice("Models", names, first, "profile-show-models", most_new=FIRST_MODELS + 2)
    selected = {name: profiles[name] for name in chosen}
    labels = [place.label for place in profile_rows.places(selected)]
    first = [place for place in where if place in labels] or labels[:FIRST_PLACES]
    places = widgets.multi_choice(
        "Devices and slices", labels, first, "profile-show-places", most_new=MOST_PLACES,
        help="Those with measurements come first.",
    )  # fmt: skip
    counts = sorted({row.processes for profile in selected.values() for row in profile.rows})
    if len(counts) > 1:
        texts = [str(count) for count in counts]
        picked = widgets.multi_choice("Processes on a slice", texts, texts[:1], "profile-show-processes")
        counts = [int(text) for text in picked]
    view = widgets.radio_choice("Picture", VIEWS, "profile-show-view")
    return chosen, places, counts, next(known for known in VIEWS if known == view)


def default_choice(profiles: Mapping[str, Profile]) -> tuple[list[str], list[str]]:
    """The first choice of models and places: where the newest profile was measured, and the models measured there."""
    newest = next(iter(profiles))
    places = list(dict.fromkeys(_measured(profiles[newest])))[:FIRST_PLACES]
    beside = [name for name in profiles if set(places) & set(_measured(profiles[name]))]
    return (beside or [newest])[:FIRST_MODELS], places


def _measured(profile: Profile) -> list[str]:
    return [profile_rows.place_of(row).label for row in profile.rows if row.basis != "estimated"]


def _fits(workspace: Workspace, name: str, processes: tuple[int, ...]) -> tuple[ProfileFit, ...]:
    stored = workspace.find("profile", name)
    assert stored is not None
    return _cached_fits(stored.sha256, name, processes, read_artifact(workspace, stored))


@st.cache_resource(max_entries=64, show_spinner="Fitting curves through the measured points")
def _cached_fits(
    sha256: str, name: str, processes: tuple[int, ...], _profile: Profile
) -> tuple[ProfileFit, ...]:
    """The fits of a stored profile; its hash stands for it in the key."""
    return fits(name, _profile, processes)


def _lines(
    entries: Sequence[Entry], model_fits: Sequence[ProfileFit], colours: Mapping[str, str]
) -> list[Line]:
    series = profile_rows.lines(entries)
    labels = profile_rows.labels(list(series))
    curve_of = {key: curve for fit in model_fits for key, curve in fit.curves.items()}
    far = {(point.series, point.row.batch_size) for fit in model_fits for point in fit.outliers}
    lines = []
    for key, rows in series.items():
        colour = colours.get(scenario.short_name(key.name), UNKNOWN)
        outliers = frozenset(row.batch_size for row in rows if (key, row.batch_size) in far)
        lines.append(Line(labels[key], colour, key.place.label, rows, curve_of.get(key), outliers))
    return lines


def _render_accuracy(model_fits: Sequence[ProfileFit], entries: Sequence[Entry]) -> None:
    """How good the curves are, in words: leave-one-out errors, and the outliers."""
    kinds = {(name, row.gpu_type, row.basis) for name, row in entries}
    short_names = profile_rows.short_names(name for name, _ in entries)
    fitted = [fit for fit in model_fits if (fit.name, fit.gpu_type, fit.basis) in kinds and fit.curves]
    if fitted:
        worst = max(fitted, key=lambda fit: fit.median_error)
        text = f"Left out one at a time, points are off their curve by {percent(worst.median_error)} at the median"
        if len(fitted) > 1:
            text += f" or less ({escape_markdown(short_names[worst.name])} is the farthest)"
        st.caption(f"{text}.")
    _render_advice([fit for fit in fitted if fit.next_point is not None], short_names)
    visible = {profile_rows.place_of(row).label for _, row in entries}
    far = [point for fit in fitted for point in fit.outliers if point.series.place.label in visible]
    if far:
        with st.container(border=True):
            st.markdown(f"**{counted(len(far), 'point')} far from the others of the model**")
            for point in far[:MOST_FAR_OFF]:
                row = point.row
                st.caption(
                    f"{escape_markdown(short_names[point.series.name])}, {escape_markdown(point.series.place.label)}, "
                    f"batch {row.batch_size}: {short(row.throughput_rps, 'req/s')} where the others say "
                    f"{short(point.expected_rps, 'req/s')} ({short(point.low_rps)} to {short(point.high_rps)}). "
                    "Worth measuring again."
                )
            if len(far) > MOST_FAR_OFF:
                st.caption(f"{len(far) - MOST_FAR_OFF} more are ringed in the picture.")


def _render_advice(model_fits: Sequence[ProfileFit], short_names: Mapping[str, str]) -> None:
    """What is uncertain after measurements of only some slices, and which further measurement would help most."""
    lines = [f"{escape_markdown(short_names[fit.name])} was {describe_advice(fit)}" for fit in model_fits]
    single = [fit.next_point is not None and fit.next_point.slices_measured == 1 for fit in model_fits]
    for line in compress(lines, single):
        st.caption(line)
    if not all(single):
        with st.expander("Which further measurement would help most"):
            for line in compress(lines, map(not_, single)):
                st.caption(line)


def describe_advice(fit: ProfileFit) -> str:
    """How uncertain the least certain slice is, and what one more measurement would bring."""
    point = fit.next_point
    assert point is not None  # the callers leave others out
    count, only = f"{point.slices_measured} slices", "; the least certain is"
    if point.slices_measured == 1:
        count, only = "one slice", " only: the others are uncertain, the most"
    where = f"measured on {count} of {escape_markdown(fit.gpu_type)}{only} {escape_markdown(point.widest)}"
    known = f"{where}, by a factor of {short(point.width_now)} either way."
    if point.width_after > 1 + HELPS * (point.width_now - 1):
        return f"{known} No single measurement would change that much."
    return (
        f"{known} Measuring {escape_markdown(point.next_slice)} at batch {point.batch_size} would help most: to a "
        f"factor of {short(point.width_after)}."
    )
