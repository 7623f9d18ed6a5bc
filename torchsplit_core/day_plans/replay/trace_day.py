"""One day of a trace of demand, for the models of a request."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace
from torchsplit_core.values import InputFault, PlanRequest, quoted, suggestion


def one_day(trace: DemandTrace, day: int | None = None, origin: str = "the trace") -> DemandTrace:
    """The day-th day of a trace, from 1: 24 hours from its first moment, or from as long after it.

    None: the trace is one day. Raises InputFault for a trace of another length, and for a day that it has not.
    """
    per_day = DAY_S // trace.step_s
    if trace.moments < per_day:
        raise InputFault(
            origin,
            f"covers {trace.moments * trace.step_s / 3600:.4g} h, and a day is 24 h",
            "Give a row for each moment of a day; cells of moments that are not known stay empty.",
        )
    days = trace.moments // per_day
    if day is None:
        if trace.moments != per_day:
            raise InputFault(
                origin,
                f"covers {trace.days:.4g} days, and one is simulated",
                f"Choose one, --trace-day 1 to {days}.",
            )
        day = 1
    if not 1 <= day <= days:
        raise InputFault(
            "--trace-day", f"is {day}, and the trace has {days} whole days", f"Give 1 to {days}."
        )
    begin = (day - 1) * per_day
    rates = {name: values[begin : begin + per_day] for name, values in trace.rates.items()}
    return replace(trace, first_s=trace.first_s % DAY_S, rates=rates)


def check_columns(request: PlanRequest, trace: DemandTrace) -> None:
    """Raise InputFault unless the trace has a column with a value for every model, and demand for one of them."""
    for model in request.models:
        if model.name not in trace.rates:
            raise InputFault(
                "the trace",
                f"has no column of the model {quoted(model.name)}",
                f"{suggestion(model.name, trace.rates, 'columns')} --map COLUMN=MODEL gives a model another column.",
            )
        if all(rate is None for rate in trace.rates[model.name]):
            raise InputFault(
                f"the trace: {model.name}", "has no value in the day", "Fill its cells, or take another day."
            )
    if trace.moments * trace.step_s != DAY_S:
        raise InputFault("the trace", f"covers {trace.days:.4g} days", "Give one day of it.")
    if not any(rate for model in request.models for rate in trace.rates[model.name]):
        raise InputFault("the trace", "has no demand in the day", "Take another day.")
