"""The verdict on a plan, computed once for all pages, and its colours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import streamlit as st

from app.format.badges import Colour
from torchsplit_core.latency_slo.verdict import Level, PlanVerdict, plan_verdict
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanOutcome, PlanRequest

COLOURS: Mapping[Level, Colour] = {"green": "green", "amber": "yellow", "red": "red"}
"""The colour of each level."""


def verdict_of(request: PlanRequest | None, plan: PlanOutcome) -> PlanVerdict:
    """The verdict on a plan of this request, simulated once for all sessions."""
    request_sha256 = None if request is None else request_hash(request)
    content = repr((request_sha256, plan.request_sha256, plan.status, plan.gpus, plan.models))
    return _cached_verdict(hashlib.sha256(content.encode()).hexdigest(), request, plan)


@st.cache_resource(max_entries=256, show_spinner=False)
def _cached_verdict(key: str, _request: PlanRequest | None, _plan: PlanOutcome) -> PlanVerdict:
    """`key` is the hash of both."""
    return plan_verdict(_request, _plan)
