"""Response times at the points of a sweep, simulated a few at a time so that no page waits for all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence

import streamlit as st

from torchsplit_core.latency_slo.worst_response import WorstResponse, worst_response
from torchsplit_core.planning.sweep.points import SweepPoint, request_at
from torchsplit_core.workspace.sweeps import StoredSweep

BUDGET_S = 0.3
"""Seconds after which a page begins no further point."""
KNOWN = "sweep responses"


def worst_responses(stored_sweep: StoredSweep, points: Sequence[SweepPoint]) -> Mapping[float, WorstResponse]:
    """The worst responses by value, for some more plans with every call."""
    known: dict[str, WorstResponse | None] = st.session_state.setdefault(KNOWN, {})
    began = time.perf_counter()
    by_value: dict[float, WorstResponse] = {}
    for point in points:
        key = _key(point)
        if key not in known and time.perf_counter() - began < BUDGET_S:
            request = request_at(stored_sweep.request, stored_sweep.what, point.value)
            known[key] = worst_response(point.outcome, request)
        worst = known.get(key)
        if worst is not None:
            by_value[point.value] = worst
    return by_value


def is_complete(points: Sequence[SweepPoint]) -> bool:
    """Whether every plan was simulated."""
    known = st.session_state.get(KNOWN, {})
    return all(_key(point) in known for point in points)


def _key(point: SweepPoint) -> str:
    text = f"{point.outcome.request_sha256} {point.outcome.gpus}"
    return hashlib.sha256(text.encode()).hexdigest()
