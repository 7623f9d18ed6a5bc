"""The details of one row of a profile: percentiles, the parts of its memory, its device."""

from __future__ import annotations

import html

import streamlit as st

from app.charts.memory import PARTS
from app.format.html import facts_html
from app.models.profile.rows import place_of
from torchsplit_core.pictures.numbers import counted, escape_markdown, exact, short
from torchsplit_core.values import Percentile, Profile, ProfileFailure, ProfileRow

Facts = list[tuple[str, str]]


def render(name: str, item: ProfileRow | ProfileFailure, profile: Profile) -> None:
    """The panel of one row or failure of that profile."""
    with st.container(border=True, key="profile-details"):
        st.markdown(
            f"**{escape_markdown(name)}**, {escape_markdown(place_of(item).label)}, batch {item.batch_size}, "
            f"{counted(item.processes, 'process', 'processes')}"
        )
        facts = (speed_facts(item), memory_facts(item), device_facts(profile, item.device))
        for column, group in zip(st.columns(3, gap="medium"), facts, strict=True):
            column.html(facts_html((html.escape(label), html.escape(value)) for label, value in group))


def speed_facts(item: ProfileRow | ProfileFailure) -> Facts:
    if isinstance(item, ProfileFailure):
        return [("outcome", item.reason.replace("_", " ")), ("why", item.message)]
    facts: Facts = [("throughput", exact(item.throughput_rps, "req/s")), ("basis", item.basis)]
    if item.low_rps is not None and item.high_rps is not None:
        facts.append(("90 % interval", f"{exact(item.low_rps)} to {exact(item.high_rps)}"))
    if item.percentiles_ms is None:
        return [*facts, ("p95", exact(item.latency_ms, "ms")), ("percentiles", "n/a")]
    facts.append(("timed runs", exact(item.percentiles_ms.runs)))
    names = ("p50", "p95", "p99")
    return facts + [(name, _format_percentile(getattr(item.percentiles_ms, name))) for name in names]


def _format_percentile(percentile: Percentile) -> str:
    low, high = (short(end) if end is not None else "?" for end in (percentile.low, percentile.high))
    known = percentile.low is not None or percentile.high is not None
    return exact(percentile.value, "ms") + (f" ({low} to {high})" if known else "")


def memory_facts(item: ProfileRow | ProfileFailure) -> Facts:
    if isinstance(item, ProfileFailure):
        return [("memory", "n/a")]
    facts = [("peak memory", exact(item.memory_gib, "GiB"))]
    parts = item.memory_parts_gib
    if parts is None:
        return [*facts, ("its parts", "n/a")]
    facts += [(name, exact(getattr(parts, name), "GiB")) for name in PARTS]
    return [*facts, ("parts are", parts.basis)]


def device_facts(profile: Profile, device: str | None) -> Facts:
    """Where and with what a row was measured, from the profile's environment."""
    if device is None:
        origin = profile.environment.get("origin") or profile.environment.get("source")
        return [("device", "not measured here"), *([("origin", str(origin))] if origin else [])]
    known = dict(profile.environment.get("devices", {})).get(device, {})
    facts = {"device": device}
    facts |= {name: value for name, value in {**profile.environment, **known}.items() if _is_plain(value)}
    return [(name.replace("_", " "), str(value)) for name, value in facts.items() if name != "notes"]


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float)) and value != ""
