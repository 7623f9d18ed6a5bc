"""The Curves tab: throughput and service time of the chosen models and slices, and how sure the curves are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from app.charts.curves import VIEWS, Line, View, curves
from app.charts.theme import CONFIG
from app.components import saving
from app.models.profile import rows as profile_rows
from app.models.profile import table
from app.models.profile.fits import ProfileFit, fits
from app.models.profile.rows import Entry, Series
from app.session import scenario
from app.session.workspace import read_artifact
from app.shell import widgets
from torchsplit_core.pictures.colours import UNKNOWN
from torchsplit_core.pictures.numbers import escape_markdown, percent, short
from torchsplit_core.values import Profile
from torchsplit_core.workspace.store import Workspace

FIRST_MODELS, FIRST_PLACES = 4, 2
MOST_FAR_OFF = 8
MOST_PLACES = 6
"""Places that come to join a choice, as long as it has fewer."""
HELPS = 0.9
"""A measurement helps where it leaves at most this share of the uncertainty."""


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
        dark = st.context.theme.type == "dark"
        with st.container(border=True):
            with saving.exportable("Curves", "profile-curves", key="profile-curves"):
                st.plotly_chart(
                    curves(shown, view, dark=dark), theme=None, key="profile-curves-chart", config=CONFIG,
                    alt=f"{view}, a line a model and slice; the table below has the same figures",
                )  # fmt: skip
            st.caption(
                "Filled: measured, with the 90 % interval of the mean. Diamond: emulated by a number of SMs. "
                "Hollow amber: estimated. Line and band: the curve fitted through measured points, and the 90 % "
                "interval of a new measurement."
            )
        _render_accuracy(model_fits, entries)
        _notes({name: profiles[name] for name in chosen})
        table.rows_behind(entries, "Rows behind the curves")


def _notes(profiles: Mapping[str, Profile]) -> None:
    """What the measurements themselves say: clocks, leaks, NaN, points that failed."""
    notes = {name: str(profile.environment.get("notes") or "") for name, profile in profiles.items()}
    notes = {name: text for name, text in notes.items() if text}
    if notes:
        with st.expander(f"Notes of the measurements of {len(notes)} model{'s' if len(notes) != 1 else ''}"):
            for name, text in notes.items():
                st.caption(f"**{escape_markdown(name)}**: {escape_markdown(text)}")


def _choice(profiles: Mapping[str, Profile]) -> tuple[list[str], list[str], list[int], View]:
    st.header("Show", anchor=False)
    names = sorted(profiles)
    first, where = default_choice(profiles)
    chosen = widgets.multi_choice("Models", names, first, "profile-show-models", most_new=FIRST_MODELS + 2)
    selected = {name: profiles[name] for name in chosen}
    labels = [place.label for place in profile_rows.places(selected)]
    places = widgets.multi_choice(
        "Devices and slices",
        labels,
        [place for place in where if place in labels] or labels[:FIRST_PLACES],
        "profile-show-places",
        # What was measured or imported since is drawn with what was chosen.
        most_new=MOST_PLACES,
        help="Those with measurements come first.",
    )
    counts = sorted({row.processes for profile in selected.values() for row in profile.rows})
    processes = counts
    if len(counts) > 1:
        picked = widgets.multi_choice(
            "Processes on a slice",
            [str(count) for count in counts],
            [str(counts[0])],
            "profile-show-processes",
        )
        processes = [int(text) for text in picked]
    view = widgets.radio_choice("Picture", VIEWS, "profile-show-view")
    return chosen, places, processes, next(known for known in VIEWS if known == view)


def default_choice(profiles: Mapping[str, Profile]) -> tuple[list[str], list[str]]:
    """What to show before anything was chosen: where the newest profile was measured, and who else was there."""
    newest = next(iter(profiles))
    places = list(dict.fromkeys(_measured(profiles[newest])))[:FIRST_PLACES]
    beside = [name for name in profiles if set(places) & set(_measured(profiles[name]))]
    return (beside or [newest])[:FIRST_MODELS], places


def _measured(profile: Profile) -> list[str]:
    return [profile_rows.place_of(row).label for row in profile.rows if row.basis != "estimated"]


def _fits(workspace: Workspace, name: str, processes: tuple[int, ...]) -> tuple[ProfileFit, ...]:
    stored = workspace.find("profile", name)
    assert stored is not None
    stored_fits: tuple[ProfileFit, ...] = _cached_fits(
        stored.sha256, name, processes, read_artifact(workspace, stored)
    )
    return stored_fits


@st.cache_resource(max_entries=64, show_spinner="Fitting curves through the measured points")
def _cached_fits(
    sha256: str, name: str, processes: tuple[int, ...], _profile: Profile
) -> tuple[ProfileFit, ...]:
    """The fits of a stored profile; its hash stands for it in the key."""
    del sha256
    return fits(name, _profile, processes)


def _lines(
    entries: Sequence[Entry], model_fits: Sequence[ProfileFit], colours: Mapping[str, str]
) -> list[Line]:
    series = profile_rows.lines(entries)
    labels = profile_rows.labels(list(series))
    curve_of = {key: curve for fit in model_fits for key, curve in fit.curves.items()}
    far: dict[Series, set[int]] = {}
    for fit in model_fits:
        for point in fit.outliers:
            far.setdefault(point.series, set()).add(point.row.batch_size)
    return [
        Line(
            label=labels[key],
            colour=colours.get(scenario.short_name(key.name), UNKNOWN),
            place=key.place.label,
            rows=rows,
            curve=curve_of.get(key),
            outliers=frozenset(far.get(key, ())),
        )
        for key, rows in series.items()
    ]


def _render_accuracy(model_fits: Sequence[ProfileFit], entries: Sequence[Entry]) -> None:
    """How well the curves hold, in words: leave-one-out errors, and the points far from the others."""
    kinds = {(name, row.gpu_type, row.basis) for name, row in entries}
    short_names = profile_rows.short_names(name for name, _ in entries)
    fitted = [fit for fit in model_fits if (fit.name, fit.gpu_type, fit.basis) in kinds and fit.curves]
    if fitted:
        worst = max(fitted, key=lambda fit: fit.median_error)
        text = f"Left out one at a time, points are off their curve by {percent(worst.median_error)} at the median"
        tail = (
            f" or less ({escape_markdown(short_names[worst.name])} is the farthest)"
            if len(fitted) > 1
            else ""
        )
        st.caption(f"{text}{tail}.")
    _render_advice([fit for fit in fitted if fit.next_point is not None], short_names)
    visible = {profile_rows.place_of(row).label for _, row in entries}
    far = [point for fit in fitted for point in fit.outliers if point.series.place.label in visible]
    if far:
        with st.container(border=True):
            st.markdown(
                f"**{len(far)} point{'s' if len(far) != 1 else ''} far from the others of the model**"
            )
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
    """What is uncertain where only some slices were measured, and the one measurement that would help most."""
    single_slice = [fit for fit in model_fits if fit.next_point and fit.next_point.slices_measured == 1]
    for fit in single_slice:
        st.caption(f"{escape_markdown(short_names[fit.name])} was {describe_advice(fit)}")
    others = [fit for fit in model_fits if fit not in single_slice]
    if others:
        with st.expander("Which further measurement would help most"):
            for fit in others:
                st.caption(f"{escape_markdown(short_names[fit.name])} was {describe_advice(fit)}")


def describe_advice(fit: ProfileFit) -> str:
    """How uncertain the least certain slice is, and what one more measurement brings."""
    point = fit.next_point
    assert point is not None  # the callers leave others out
    count = "one slice" if point.slices_measured == 1 else f"{point.slices_measured} slices"
    only = (
        " only: the others are uncertain, the most"
        if point.slices_measured == 1
        else "; the least certain is"
    )
    known = (
        f"measured on {count} of {escape_markdown(fit.gpu_type)}{only} "
        f"{escape_markdown(point.widest)}, by a factor of "
    )
    if point.width_after > 1 + HELPS * (point.width_now - 1):
        return f"{known}{short(point.width_now)} either way. No single measurement would change that much."
    return (
        f"{known}{short(point.width_now)} either way. Measuring {escape_markdown(point.next_slice)} "
        f"at batch {point.batch_size} "
        f"would help most: to a factor of {short(point.width_after)}."
    )
