"""A day planned: a plan for each window of demand with the changes between them, beside one plan that holds all day."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values.fields import Added, Name, NonNegative, Sha256, Text
from torchsplit_core.values.plan.outcome import PlanOutcome
from torchsplit_core.values.status import SolveStatus
from torchsplit_core.values.transition.outcome import Transition


@dataclass(frozen=True, slots=True)
class DayWindow:
    """A window's plan, and the transition to the plan of the next one; None where one of the two has no plan.

    `ahead`: the transition is carried out in this window, so that it ends when the next one begins; else it begins
    then. It is the way that loses fewer requests, at the demands of the window in which it falls.
    """

    name: Name
    plan: PlanOutcome
    transition: Transition | None
    ahead: Added[bool] = False


@dataclass(frozen=True, slots=True)
class BothSides:
    """A figure of the plans by window, and of the one plan; None where that side has no plan, or no prices."""

    windows: NonNegative | None
    static: NonNegative | None


@dataclass(frozen=True, slots=True)
class EnergyRange:
    """kWh of a day, estimated from the limits of the cards in use (see `planning.energy.power`)."""

    low: NonNegative
    high: NonNegative


@dataclass(frozen=True, slots=True)
class EnergyOfSides:
    """Energy of the plans by window, and of the one plan; None where a plan, or the limit of a card, is missing."""

    windows: EnergyRange | None
    static: EnergyRange | None


@dataclass(frozen=True, slots=True)
class DayOutcome:
    """The plans of a day. The transition of the last window leads back to the first.

    gpu_hours: GPUs in use × hours, of a day. worst_normalised: the least r of any model, in any window at its demand;
    of `static` at the largest demands. lost_requests: what the transitions of a day leave unserved of the demand
    meanwhile, estimated; None where one is missing. The costs are of a day, in the currency of the
    prices, and per million of what is served in it; None without prices, those of tokens where a model is no LLM.
    energy_kwh_per_day: of the GPUs in use, estimated; None where neither side has it. warnings: what the day takes no
    notice of.
    """

    windows: tuple[DayWindow, ...]
    static: PlanOutcome
    gpu_hours: BothSides
    worst_normalised: BothSides
    lost_requests: Added[NonNegative | None] = None
    cost_per_day: Added[BothSides | None] = None
    cost_per_million_requests: Added[BothSides | None] = None
    cost_per_million_output_tokens: Added[BothSides | None] = None
    request_sha256: Added[Sha256 | None] = None
    energy_kwh_per_day: Added[EnergyOfSides | None] = None
    warnings: Added[tuple[Text, ...]] = ()

    @property
    def status(self) -> SolveStatus:
        """Of the windows: infeasible where one is, else timeout where one has no plan, optimal where all are."""
        statuses: set[SolveStatus] = {window.plan.status for window in self.windows}
        order: tuple[SolveStatus, ...] = ("infeasible", "timeout", "feasible", "optimal")
        return next(status for status in order if status in statuses)
