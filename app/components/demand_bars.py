"""The demand of a model over the windows of a day as bars, drawn with the pointer or moved by keys.

Each bar is a slider with its name and value (arrows: a step, page keys: ten, home and end: none and the top; left and
right go to the neighbour). A stroke over several bars sets each. The page learns of a stroke when it ends; what is
drawn meanwhile stays until the page has answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from app.components.keys import component, component_key

NAME = "torchsplit_demand_bars"
FOLDER = Path(__file__).parent
LEAST_STEPS = 100
"""Steps of a bar from none to its top; at most two and a half times as many."""
HEADROOM = 1.25
"""Above the largest value, so that a bar can be drawn higher; the top moves with it."""


@dataclass(frozen=True, slots=True)
class DemandBar:
    """A window: its name, its times in words, how long it is, and its value (None: its cell has no number)."""

    name: str
    times: str
    hours: float
    value: float | None


_PARTS: dict[str, Any] = {"html": '<div class="demand-bars"></div>', "isolate_styles": False}
_PARTS |= {kind: FOLDER.joinpath(f"demand_bars.{kind}").read_text(encoding="utf-8") for kind in ("js", "css")}
_component = partial(component, NAME, _PARTS)


def demand_bars(
    label: str,
    subject: str,
    bars: Sequence[DemandBar],
    *,
    key: str,
    on_drawn: Callable[[Mapping[int, float]], None],
) -> None:
    """Draw the bars of a `subject`, in requests/s; `on_drawn` is called with the new values by place before the page
    runs again."""
    key = component_key(key)

    def drawn() -> None:
        on_drawn(drawn_values(st.session_state[key].get("drawn"), subject, len(bars)))

    step, top = scale_of(max((bar.value or 0.0 for bar in bars), default=0.0))
    data = {
        "label": label, "subject": subject, "unit": "requests/s", "step": step, "top": top,
        "bars": [asdict(bar) for bar in bars], "answered": _last_serial(st.session_state.get(key)),
    }  # fmt: skip
    _component()(data=data, key=key, on_drawn_change=drawn)


def scale_of(largest: float) -> tuple[float, float]:
    """The step (1, 2 or 5 times a power of ten) and the top of bars whose largest value that is."""
    wanted = HEADROOM * largest if largest > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(wanted / LEAST_STEPS))
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= wanted / LEAST_STEPS * (1 + 1e-9))
    return step, step * math.ceil(wanted / step - 1e-9)


def drawn_values(report: Any, subject: str, count: int) -> dict[int, float]:
    """What a report of the browser says of this subject's bars; others and what is no value are left out."""
    if not isinstance(report, Mapping) or report.get("subject") != subject:
        return {}
    values = report.get("values")
    return {
        int(place): float(value)
        for place, value in (values.items() if isinstance(values, Mapping) else ())
        if str(place).isdecimal() and int(place) < count
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    }


def _last_serial(state: Any) -> float:
    """The number of the last report that arrived."""
    report = state.get("drawn") if state else None
    number = report.get("serial") if isinstance(report, Mapping) else None
    return number if isinstance(number, int | float) else 0
