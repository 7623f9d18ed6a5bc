"""A model with another demand: its arrivals keep their form and come as much faster or slower."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.values import MmppArrivals, PlanModel, TraceArrivals
from torchsplit_core.values.simulation.request import Arrivals


def with_demand(model: PlanModel, demand_rps: float) -> PlanModel:
    """The model with this demand (above 0), its arrivals in proportion.

    Those of an LLM give their form alone: its engines are simulated at the rates that are looked for.
    """
    factor = demand_rps / model.demand_rps
    arrivals = None if model.arrivals is None else scaled_arrivals(model.arrivals, factor)
    return replace(model, demand_rps=demand_rps, arrivals=arrivals)


def scaled_arrivals(arrivals: Arrivals, factor: float) -> Arrivals:
    """Arrivals of the same form at `factor` times the rate; how long the states of an MMPP last stays as it is."""
    if isinstance(arrivals, TraceArrivals):
        return replace(arrivals, times_s=tuple(time / factor for time in arrivals.times_s))
    if isinstance(arrivals, MmppArrivals):
        states = (replace(state, rate_rps=state.rate_rps * factor) for state in arrivals.states)
        return replace(arrivals, states=tuple(states))
    return replace(arrivals, rate_rps=arrivals.rate_rps * factor)
