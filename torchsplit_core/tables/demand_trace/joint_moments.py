"""The moments of a trace as joint samples of demand: those at which every model has a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace
from torchsplit_core.values import InputFault, quoted, suggestion


@dataclass(frozen=True, slots=True)
class JointMoments:
    """Requests/s by model, the k-th entries of one moment; `left_out`: moments at which a model has no value."""

    rates: dict[str, tuple[float, ...]]
    left_out: int


def joint_moments(trace: DemandTrace, models: Sequence[str], origin: str = "the trace") -> JointMoments:
    """The moments of these models, whose names are columns. Raises InputFault for one that is none, and if no moment
    has them all.
    """
    for name in models:
        if name not in trace.rates:
            remedy = (
                f"{suggestion(name, trace.rates, 'columns')} A column of every model holds its requests/s."
            )
            raise InputFault(f"{origin}: header", f"has no column {quoted(name)}", remedy)
    columns = [trace.rates[name] for name in models]
    whole = [moment for moment in zip(*columns, strict=True) if None not in moment]
    if not whole:
        raise InputFault(
            origin, f"has no moment at which {', '.join(models)} all have a value", "Fill its empty cells."
        )
    rates = {name: tuple(moment[number] or 0.0 for moment in whole) for number, name in enumerate(models)}
    return JointMoments(rates, trace.moments - len(whole))
