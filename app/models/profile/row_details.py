"""What is known of one row of a profile beside its figures: percentiles, the parts of its memory, its device."""

from __future__ import annotations

import html
from collections.abc import Iterable

import streamlit as st

from app.format.html import facts_html
from app.models.profile.rows import place_of
from torchsplit_core.pictures.numbers import escape_markdown, exact, short
from torchsplit_core.values import Percentile, Profile, ProfileFailure, ProfileRow

Facts = list[tuple[str, str]]


def render(name: str, item: ProfileRow | ProfileFailure, profile: Profile) -> None:
    """The panel of one row or failure of that profile."""
    with st.container(border=True, key="profile-details"):
        st.markdown(
            f"**{escape_markdown(name)}**, {escape_markdown(place_of(item).label)}, batch {item.batch_size}, "
            f"{item.processes} process{'es' if item.processes > 1 else ''}"
        )
        facts = (speed_facts(item), memory_facts(item), device_facts(profile, item.device))
        for column, group in zip(st.columns(3, gap="medium"), facts, strict=True):
            column.html(facts_html(_escape(group)))


def _escape(facts: Iterable[tuple[str, str]]) -> Facts:
    return [(html.escape(name), html.escape(value)) for name, value in facts]


def speed_facts(item: ProfileRow | ProfileFailure) -> Facts:
    if isinstance(item, ProfileFailure):
        return [("outcome", item.reason.replace("_", " ")), ("why", item.message)]
    facts: Facts = [("throughput", exact(item.throughput_rps, "req/s")), ("basis", item.basis)]
    if item.low_rps is not None and item.high_rps is not None:
        facts.append(("90 % interval", f"{exact(item.low_rps)} to {exact(item.high_rps)}"))
    if item.percentiles_ms is None:
        return [*facts, ("p95", exact(item.latency_ms, "ms")), ("percentiles", "n/a")]
    facts.append(("timed runs", exact(item.percentiles_ms.runs)))
    for label, percentile in (
        ("p50", item.percentiles_ms.p50),
        ("p95", item.percentiles_ms.p95),
        ("p99", item.percentiles_ms.p99),
    ):
        facts.append((label, _format_percentile(percentile)))
    return facts


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
    facts += [
        (label, exact(value, "GiB"))
        for label, value in (
            ("weights", parts.weights),
            ("activations", parts.activations),
            ("transient", parts.transient),
            ("context", parts.context),
        )
    ]
    return [*facts, ("parts are", parts.basis)]


def device_facts(profile: Profile, device: str | None) -> Facts:
    """Where and with what a row was measured, as the profile's environment has it."""
    if device is None:
        origin = profile.environment.get("origin") or profile.environment.get("source")
        return [("device", "not measured here"), *([("origin", str(origin))] if origin else [])]
    known = dict(profile.environment.get("devices", {})).get(device, {})
    facts = {"device": device}
    facts |= {name: value for name, value in {**profile.environment, **known}.items() if _is_plain(value)}
    return [(name.replace("_", " "), str(value)) for name, value in facts.items() if name != "notes"]


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float)) and value != ""
