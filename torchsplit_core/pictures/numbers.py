"""Formats numbers for people: thin spaces, units, few significant figures in pictures, "n/a" for unknown values."""

from __future__ import annotations

import math
import re

from torchsplit_core.values.units import GB, GIB, MB, MIB

THIN = "\u202f"
"""A narrow no-break space: between groups of thousands, and before a unit."""
UNKNOWN = "n/a"
HOUR_S, DAY_S = 3600, 86400


def short(value: float | None, unit: str = "") -> str:
    """At most three significant figures: 7121 → 7 120."""
    return _format(value, unit, 3)


def exact(value: float | None, unit: str = "") -> str:
    """Six significant figures, for tables."""
    return _format(value, unit, 6)


def _format(value: float | None, unit: str, figures: int) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    tail = f"{THIN}{unit}" if unit else ""
    if value == 0:
        return f"0{tail}"
    if abs(value) < 1e-4:
        return f"{value:.{figures - 1}e}{tail}"
    decimals = max(0, figures - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, figures - 1 - math.floor(math.log10(abs(value))))
    text = f"{rounded:,.{decimals}f}".replace(",", THIN)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text + tail


def size(count: float | None) -> str:
    """Bytes of data sent or stored, in the decimal unit that fits, as network links are rated."""
    return _bytes(count, (("GB", GB), ("MB", MB), ("kB", 1000)))


def memory_size(count: float | None) -> str:
    """Bytes of memory, in the binary unit that fits, as slices are sized."""
    return _bytes(count, (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)))


def _bytes(count: float | None, units: tuple[tuple[str, int], ...]) -> str:
    if count is None:
        return UNKNOWN
    for unit, factor in units:
        if count >= factor:
            return short(count / factor, unit)
    return short(count, "B")


def percent(share: float | None) -> str:
    """A share as a percentage; a small one is shown as below 0.01 %, never as zero."""
    if share is None:
        return UNKNOWN
    if 0 < share < 1e-4:
        return f"<{THIN}0.01{THIN}%"
    return short(100 * share, "%")


def duration(seconds: float) -> str:
    """Seconds below two minutes, minutes below two hours, hours below two days, days above."""
    if seconds < 120:
        return f"{seconds:.0f}{THIN}s"
    if seconds >= 2 * DAY_S:
        return f"{seconds // DAY_S:.0f}{THIN}d {seconds % DAY_S // HOUR_S:.0f}{THIN}h"
    if seconds >= 2 * HOUR_S:
        return f"{seconds // HOUR_S:.0f}{THIN}h {seconds % HOUR_S // 60:02.0f}{THIN}min"
    return f"{seconds // 60:.0f}{THIN}min {seconds % 60:02.0f}{THIN}s"


def counted(count: int, singular: str, plural: str = "") -> str:
    """A number with its noun: "1 point failed", "1 024 points failed"."""
    return f"{exact(count)} {singular if count == 1 else plural or f'{singular}s'}"


def all_measured(profiles: int) -> str:
    """A sentence that every profile was measured, in the singular for one."""
    return "the profile is measured" if profiles == 1 else f"all {exact(profiles)} profiles measured"


_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Bidirectional control characters: they also affect other text that follows on the same line."""


def escape_markdown(text: str) -> str:
    """Escape a name for Streamlit's markdown, so that it is shown literally and does not turn the text after it."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~$<>:-])", r"\\\1", _TURNS.sub("\ufffd", text))
