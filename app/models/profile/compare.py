"""The tab Compare: two profiles, or two devices of one, as ratios of throughput with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from app.charts.ratio import RatioLine, ratio
from app.components import saving
from app.models.profile import rows
from app.models.profile.ratios import Pair, common_points, middle
from app.models.profile.rows import Place
from app.session import scenario
from app.shell import widgets
from torchsplit_core.pictures.colours import PALETTE
from torchsplit_core.pictures.numbers import THIN, counted, escape_markdown, short
from torchsplit_core.values import Profile
from torchsplit_core.workspace.store import Workspace

TWO_PROFILES, TWO_PLACES = "two profiles", "two devices of one profile"
MOST_LINES = 8


def render(workspace: Workspace, profiles: Mapping[str, Profile]) -> None:
    """The whole tab."""
    left, right = st.columns([4, 12], gap="medium")
    with left, st.container(border=True):
        st.header("Compare", anchor=False)
        modes = [TWO_PROFILES, TWO_PLACES] if len(profiles) > 1 else [TWO_PLACES]
        mode = widgets.radio_choice("What", modes, "profile-compare-way")
        sides = _two_profiles(profiles) if mode == TWO_PROFILES else _two_places(profiles)
        sides = sides and _without_estimates(*sides)
    with right:
        if sides is None:
            st.info(
                "This profile has rows of one device only: measure the model on another, or import a profile."
            )
            return
        first, second, pairs = sides
        if not pairs:
            st.info(
                f"{escape_markdown(first)} and {escape_markdown(second)} have no point in common: the same device, "
                "slice, batch size and number of processes. Measure one of them where the other was measured."
            )
            return
        _render_ratio(first, second, pairs)
        _picture(workspace, first, second, pairs)


def _two_profiles(profiles: Mapping[str, Profile]) -> tuple[str, str, tuple[Pair, ...]]:
    names = sorted(profiles)
    newest = next(iter(profiles))
    first = widgets.single_choice("First", names, newest, "profile-compare-first")
    others = [name for name in names if name != first]
    candidates = [name for name in profiles if name != first]
    comparable = (name for name in candidates if common_points(profiles[first], profiles[name]))
    second = widgets.single_choice("Second", others, next(comparable, others[0]), "profile-compare-second")
    pairs = common_points(profiles[first], profiles[second])
    labels = list(dict.fromkeys(pair.place.label for pair in pairs if pair.place))
    every = "Every device and slice they share"
    chosen = widgets.multi_choice("On", labels, (), "profile-compare-on", placeholder=every)
    selected = tuple(pair for pair in pairs if not chosen or (pair.place and pair.place.label in chosen))
    return first, second, selected


def _two_places(profiles: Mapping[str, Profile]) -> tuple[str, str, tuple[Pair, ...]] | None:
    names = sorted(profiles)
    name = widgets.single_choice("Profile", names, next(iter(profiles)), "profile-compare-profile")
    labels = {place.label: place for place in rows.places({name: profiles[name]})}
    if len(labels) < 2:
        return None
    options = list(labels)
    first = widgets.single_choice("First", options, options[0], "profile-compare-place-1")
    others = [label for label in options if label != first]
    second = widgets.single_choice("Second", others, others[0], "profile-compare-place-2")
    places: tuple[Place, Place] = (labels[first], labels[second])
    return first, second, common_points(profiles[name], profiles[name], places)


def _without_estimates(first: str, second: str, pairs: Sequence[Pair]) -> tuple[str, str, tuple[Pair, ...]]:
    """The measured points alone if there are any, unless the user asks for estimates."""
    measured = tuple(pair for pair in pairs if "estimated" not in (pair.first.basis, pair.second.basis))
    if not measured or len(measured) == len(pairs):
        return first, second, tuple(pairs)
    wanted = st.checkbox("Estimated points too", key="profile-compare-estimates", persist_state="session")
    return first, second, tuple(pairs) if wanted else measured


def _render_ratio(first: str, second: str, pairs: Sequence[Pair]) -> None:
    """The median ratio in words, and badges of how sure it is."""
    typical = middle(pairs)
    assert typical is not None  # the caller passes points
    noise = sum(pair.verdict == "within noise" for pair in pairs)
    unknown = sum(pair.verdict == "no interval" for pair in pairs)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"{escape_markdown(second)} gives **{short(typical)}{THIN}×** the throughput of {escape_markdown(first)} "
            f"(median of {counted(len(pairs), 'common point')})",
            width="content",
        )
        if noise:
            widgets.badge(f"{noise} of {len(pairs)} within noise", "gray")
        if unknown:
            widgets.badge(f"{unknown} without an interval", "gray")
        if any("estimated" in (pair.first.basis, pair.second.basis) for pair in pairs):
            widgets.badge("some estimated", "yellow")


def _picture(workspace: Workspace, first: str, second: str, pairs: Sequence[Pair]) -> None:
    groups: dict[tuple[str, Place | None, int], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.stage, pair.place, pair.processes), []).append(pair)
    colour = scenario.colours(workspace).get(scenario.short_name(second), PALETTE[0])
    shown = [
        _line(key, group, colour if len(groups) == 1 else PALETTE[index % len(PALETTE)])
        for index, (key, group) in enumerate(list(groups.items())[:MOST_LINES])
    ]
    with st.container(border=True):
        drawn = ratio(shown, "second ÷ first, req/s", dark=widgets.is_dark())
        alt = (
            f"Throughput of {second} over that of {first} by batch size; the table below has the same figures"
        )
        widgets.chart(drawn, "Ratios", f"{second}-over-{first}", key="profile-compare-chart", alt=alt)
        words = (
            "Above 1 the second is faster; the axis is logarithmic. Hollow: within noise, the 90 % intervals of the "
            "two overlap."
        )
        if len(groups) > MOST_LINES:
            words += f" The first {MOST_LINES} of {len(groups)} lines are drawn; choose devices at the left."
        st.caption(words)
    figures = ("first req/s", "second req/s", "second ÷ first", "at least", "at most")
    config = {name: st.column_config.NumberColumn(format="%.4g") for name in figures}
    rows, alt = table(pairs), "Common points and their ratios"
    saving.table(
        rows, "comparison", key="profile-compare-table", alt=alt, height="auto", column_config=config
    )


def _line(key: tuple[str, Place | None, int], pairs: Sequence[Pair], colour: str) -> RatioLine:
    stage, place, processes = key
    parts = [place.label if place else "", f"{processes} proc." if processes > 1 else ""]
    parts += [stage] if stage != "whole" else []
    ordered = sorted(pairs, key=lambda pair: pair.batch_size)
    return RatioLine(
        label=" · ".join(part for part in parts if part) or "ratio",
        colour=colour,
        batch_sizes=tuple(pair.batch_size for pair in ordered),
        ratios=tuple(pair.ratio for pair in ordered),
        lows=tuple(pair.ratio if pair.low is None else pair.low for pair in ordered),
        highs=tuple(pair.ratio if pair.high is None else pair.high for pair in ordered),
        within_noise=tuple(pair.verdict == "within noise" for pair in ordered),
    )


def table(pairs: Sequence[Pair]) -> pd.DataFrame:
    """A row for each common point, exact."""
    return pd.DataFrame(
        [
            {
                "device and slice": pair.place.label if pair.place else "as chosen",
                "stage": pair.stage,
                "processes": pair.processes,
                "batch": pair.batch_size,
                "first req/s": pair.first.throughput_rps,
                "second req/s": pair.second.throughput_rps,
                "second ÷ first": pair.ratio,
                "at least": pair.low,
                "at most": pair.high,
                "verdict": pair.verdict,
                "basis": " and ".join(dict.fromkeys((pair.first.basis, pair.second.basis))),
            }
            for pair in pairs
        ]
    )
