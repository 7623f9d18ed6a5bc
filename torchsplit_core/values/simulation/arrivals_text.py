"""Arrivals as one line of text, as commands and tables take them.

    arrivals = KIND [at RATE]
    KIND     = poisson, deterministic, gamma:CV or mmpp:TIMES@SECONDS,TIMES@SECONDS,…

TIMES multiply the rate, SECONDS are mean stays; RATE is in requests/s, without it the model's demand.
"""

from __future__ import annotations

from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.simulation.request import (
    Arrivals,
    DeterministicArrivals,
    GammaArrivals,
    MmppArrivals,
    PoissonArrivals,
    RateState,
    TraceArrivals,
)

KINDS = (
    "poisson, deterministic, gamma:CV or mmpp:TIMES@SECONDS,TIMES@SECONDS,…, with “ at RPS” at another rate"
)


def arrivals_text(arrivals: Arrivals | None, rate_rps: float) -> str:
    """Arrivals as `parse_arrivals` reads them, of a model of this demand; empty for None.

    Numbers have six digits. Of a trace only the length is written, which cannot be read back.
    """
    if arrivals is None:
        return ""
    if isinstance(arrivals, TraceArrivals):
        return f"trace of {len(arrivals.times_s)}"
    if isinstance(arrivals, MmppArrivals):
        states = (f"{state.rate_rps / rate_rps:.6g}@{state.mean_s:.6g}" for state in arrivals.states)
        return f"mmpp:{','.join(states)}"
    kind = f"gamma:{arrivals.cv:.6g}" if isinstance(arrivals, GammaArrivals) else arrivals.kind
    return kind if arrivals.rate_rps == rate_rps else f"{kind} at {arrivals.rate_rps:.6g}"


def parse_arrivals(text: str, rate_rps: float, where: str) -> Arrivals:
    """The arrivals of a text, at this rate unless it names another. Raises InputFault for what names no kind.

    Whether the numbers make sense is for `simulation.validate.check_arrivals`.
    """
    kind, given, at = (part.strip() for part in text.partition(" at "))
    word, _, parameters = kind.partition(":")
    try:
        rate = float(at) if given else rate_rps
        if word == "gamma":
            return GammaArrivals(rate, float(parameters))
        if word == "mmpp":
            return MmppArrivals(tuple(_state(part, rate) for part in parameters.split(",")))
        if word == "poisson" and not parameters:
            return PoissonArrivals(rate)
        if word == "deterministic" and not parameters:
            return DeterministicArrivals(rate)
    except ValueError:
        pass
    raise InputFault(
        where,
        f"is {quoted(text)}, which names no arrivals",
        f"Write {KINDS}; for example gamma:2 or mmpp:0.5@8,3@2.",
    )


def _state(text: str, rate: float) -> RateState:
    """`1.5@2`: one and a half times the rate for 2 s on average. Raises ValueError."""
    times, _, seconds = text.partition("@")
    return RateState(float(times) * rate, float(seconds))
