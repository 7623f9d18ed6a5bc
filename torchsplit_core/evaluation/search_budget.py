"""The time that an evaluation may take, announced before it begins."""

from __future__ import annotations

import math

from torchsplit_core.pictures.numbers import THIN, counted, duration
from torchsplit_core.planning.sweep.workers import WORKERS


def effort_words(plans: int, time_limit_s: float) -> str:
    """The most time of the searches for so many plans, at most `time_limit_s` each, WORKERS at once."""
    if not plans:
        return "No plan is left to search for."
    most = math.ceil(plans / WORKERS) * time_limit_s
    return (
        f"{counted(plans, 'plan')} × at most {time_limit_s:g}{THIN}s, {WORKERS} at once: at most {duration(most)} of "
        "search. Rules, checks and simulations come on top."
    )
