"""Alternates planning and simulation: plan with the rates that slices carry, simulate, correct the rates, replan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torchsplit_core.latency_slo.derating import DeratedRequests, KnownRates, with_request_points
from torchsplit_core.latency_slo.relaxation import PUBLISHED_RULE, relax, reserve, without_limits
from torchsplit_core.latency_slo.slice_sets import SliceSetSearch
from torchsplit_core.latency_slo.slo_check import SloChecker, SloResult, limited_models, offered_by
from torchsplit_core.planning.outcome.figures import level_values, unproven_outcome
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import goal_of, max_min_objective
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import (
    HostState,
    PlannedGpu,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Progress,
    tenants_on,
)

ROUNDS = 4
"""Plans of one kind, each corrected by the simulation of the previous one."""

SHORTER = 0.98
"""Factor on the rate that a model's slices carried, after a plan that failed its long simulation."""

HOPELESS, BETTER = 0.85, 1.01
"""Rounds end if, from the second plan on, the worst model carries less than the first share of its rate, or less than
the second factor times its previous share."""

SETS_PART, SET_ROUNDS = 0.4, 20
"""Part of the remaining time for simulating sets of slices, and the plans made of them."""

RESERVES = (
    (1.0, 1.0),
    PUBLISHED_RULE,
    (0.5, 1.25),
    (0.4, 1.5),
    (0.3, 2.0),
    (0.2, 3.0),
    (0.2, 4.0),
    (0.1, 6.0),
)
"""Of a first plan, as in `reserve`: a model that fails its simulation, or nearly does, gets the next."""

RESERVE_ROUNDS, RESERVE_PLAN_S = 12, 0.3
"""Plans with reserves, and seconds for each. They are made however short the limit is."""

MIN_FIRST_PLAN_S = 1.5
"""Seconds in which sets of slices are sought for a first plan, however short the limit."""

LESS = 1e-6
"""Relative reduction of the cost that counts as one."""

LEAST_S = 0.3
"""Seconds left below which no further search is started."""

NOTHING = PlanStatistics(0.0, 0.0, 0.0, "none")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan of the request, without response figures, whose simulation keeps every limit."""

    outcome: PlanOutcome
    judgement: SloResult


class SloSearch:
    """Searches for plans that keep the limits, most promising first; `best` is the best so far."""

    def __init__(
        self,
        request: PlanRequest,
        types: frozenset[str],
        judge: SloChecker,
        deadline: float,
        progress: Progress,
    ) -> None:
        self.request, self.judge = request, judge
        self.deadline, self.progress = deadline, progress
        self.first_until = time.perf_counter() + MIN_FIRST_PLAN_S
        self.tried_reserves = False
        self.plain = without_limits(request)
        self.fleet = list_gpus(request.gpus)
        self.best: Candidate | None = None
        self.plans = 0
        self.failing: tuple[str, ...] = ()
        self.doubtful: tuple[str, ...] = ()
        known: KnownRates = {}
        self.derated = [DeratedRequests(request, types, known, deadline)]
        if request.sharing == "fractional":
            # Plans of whole slices are valid too, and requests wait less on them.
            self.derated.append(
                DeratedRequests(replace(request, sharing="exclusive"), types, known, deadline)
            )

    def left(self) -> float:
        """Seconds left until the deadline, which waits for a first plan a little."""
        deadline = self.deadline if self.best is not None else max(self.deadline, self.first_until)
        return deadline - time.perf_counter()

    def run(self, bound: PlanOutcome | None) -> None:
        """Search until a plan meets the bound, nothing more is learned, or the time is over."""
        if bound is not None and self._accept(self._fleet_of(bound)) and self._meets_bound(bound):
            return
        steps = self._minimize_gpus(bound) if goal_of(self.request).by_cost else self._maximize_worst(bound)
        for _ in steps:
            if self._meets_bound(bound) or self.left() < LEAST_S:
                break
        self._plan_first()
        if self.best is None and not goal_of(self.request).by_cost:
            self.first_until = time.perf_counter() + MIN_FIRST_PLAN_S
            sets = SliceSetSearch.of(self.request)
            for _ in self._plan_slice_sets(sets) if sets is not None else ():
                pass

    def _plan_first(self) -> None:
        """If there is no plan yet and this was not tried: plans of whole slices with reserves, then of shares."""
        if self.tried_reserves:
            return
        self.tried_reserves = True
        for sharing in dict.fromkeys(("exclusive", self.request.sharing)):
            self._plan_with_reserves(replace(self.request, sharing=sharing))

    def _plan_with_reserves(self, request: PlanRequest) -> None:
        """Plan with larger reserves for the models that fail, until a plan holds; rounds are counted, not timed."""
        # The fewest GPUs without reserves hardly ever hold.
        steps = dict.fromkeys(
            (model.name for model in limited_models(request)), int(goal_of(request).by_cost)
        )
        last = len(RESERVES) - 1
        for _ in range(RESERVE_ROUNDS):
            if self.best is not None:
                return
            reserves = {name: RESERVES[step] for name, step in steps.items()}
            planned = self._plan_within(reserve(request, reserves), RESERVE_PLAN_S)
            if planned is None or self._accept(self._fleet_of(planned)):
                return
            if not self.failing or any(steps[name] == last for name in self.failing):
                return
            for name in {*self.failing, *self.doubtful}:
                steps[name] = min(steps[name] + 1, last)

    def _meets_bound(self, bound: PlanOutcome | None) -> bool:
        """Whether the best plan's levels equal those of the bounding plan."""
        if self.best is None or bound is None:
            return False
        values = self._values(self.best.outcome)
        return all(map(equal, values, self._values(bound)))

    def _fleet_of(self, bound: PlanOutcome) -> tuple[PlannedGpu, ...]:
        """The GPUs of the plan without queueing, with the request's points."""
        return self._on_whole_fleet(with_request_points(self.request, bound.gpus, {}))

    def _values(self, outcome: PlanOutcome) -> list[float]:
        return level_values(self.plain, outcome.gpus, outcome.models)

    def _minimize_gpus(self, bound: PlanOutcome | None) -> Iterator[None]:
        """Try sets of slices; then the bound's GPUs, as few as slices alone suggest, all of them, counts in between."""
        sets = SliceSetSearch.of(self.request)
        if sets is not None:
            yield from self._plan_slice_sets(sets)
            if self.best is not None and sets.complete and self.request.sharing == "exclusive":
                # What follows plans with whole slices, too.
                return
        self._plan_first()
        yield
        if bound is not None and self._try_halved_limits(bound):
            return
        # Plans of whole slices come first: they take less time to find.
        for derated in reversed(self.derated):
            if bound is not None:
                yield from self._balance_on(derated, tuple(gpu.id for gpu in bound.gpus if gpu.used))
            yield from self._learn_factors(derated, derated.rate_request)
        alike = len({replace(gpu, id="") for gpu in self.fleet}) == 1
        if self.best is None:
            for derated in reversed(self.derated):
                yield from self._balance_on(derated, tuple(gpu.id for gpu in self.fleet))
        if self.best is not None and alike:
            least = 1 if bound is None else sum(gpu.used for gpu in bound.gpus) + 1
            most = sum(gpu.used for gpu in self.best.outcome.gpus)
            for count in range(least, most):
                before = self.best
                for derated in reversed(self.derated):
                    yield from self._balance_on(derated, tuple(gpu.id for gpu in self.fleet[:count]))
                    if self.best is not before:
                        return

    def _plan_slice_sets(self, sets: SliceSetSearch) -> Iterator[None]:
        """Plan with sets of whole slices, each simulated; a set that fails its long simulation is taken out."""
        sets.enumerate(time.perf_counter() + SETS_PART * self.left())
        for _ in range(SET_ROUNDS):
            most = math.inf if self.best is None else self._values(self.best.outcome)[0] * (1 - LESS)
            gpus = sets.cheapest(most, self.left() / 3) if self.left() >= LEAST_S else None
            if gpus is None:
                return
            self.plans += 1
            self._accept(self._on_whole_fleet(gpus))
            yield
            if not self.failing:
                return
            sets.reject(self.failing, time.perf_counter() + SETS_PART * self.left())

    def _balance_on(self, derated: DeratedRequests, ids: tuple[str, ...]) -> Iterator[None]:
        """Plan on these GPUs only, with the model closest to its limit as far from it as possible."""
        yield from self._learn_factors(derated, lambda: self._balanced_request(derated.rate_request(), ids))

    def _balanced_request(self, request: PlanRequest, ids: tuple[str, ...]) -> PlanRequest | None:
        """A derived request on these GPUs that maximizes the smallest rate / offered rate; None if impossible."""
        offered_rps = {model.name: offered_by(model) for model in limited_models(self.request)}
        models = []
        for model in request.models:
            rate = max(offered_rps.get(model.name, 0.0), model.min_throughput_rps or 0.0)
            if rate:
                # The offered rate may exceed what slices seem to carry until their factor is known: no minimum.
                least = None if model.name in offered_rps else model.min_throughput_rps
                models.append(
                    replace(
                        model,
                        weight=1.0,
                        demand_rps=rate,
                        cap_at_demand=False,
                        min_throughput_rps=least,
                        tier=0,
                    )
                )
        if request.objective.max_touched_gpus is not None:
            # What runs on the other GPUs would go without being counted.
            return None
        if len(models) < len(request.models) and request.colocations:
            # Models without a required rate would be dropped, but a pair may name them.
            return None
        entries = tuple(gpu.entry(id=gpu.id) for gpu in self.fleet if gpu.id in ids)
        return replace(
            request,
            gpus=entries,
            models=tuple(models),
            objective=max_min_objective(request.objective),
            current=_state_of(request.current, ids),
        )

    def _try_halved_limits(self, bound: PlanOutcome) -> bool:
        """Whether a plan by the published rule, a batch may take half of the limit, keeps the limits at the bound.

        It needs no simulated slices, so it is tried early; throughputs are as far above the rates as possible.
        """
        request: PlanRequest | None = reserve(self.request)
        if goal_of(self.request).by_cost and request is not None:
            request = self._balanced_request(request, tuple(gpu.id for gpu in bound.gpus if gpu.used))
        planned = None if request is None else self._plan_request(request)
        return planned is not None and self._accept(self._fleet_of(planned)) and self._meets_bound(bound)

    def _maximize_worst(self, bound: PlanOutcome | None) -> Iterator[None]:
        """Plan with the points' throughputs, raising failing models' minima; then with what slices carry alone."""
        self._plan_first()
        yield
        if bound is not None and self._try_halved_limits(bound):
            return
        if bound is not None:
            yield from self._raise_minima(self.derated[0], bound)
        for derated in self.derated[1:]:
            whole = self._plan_request(relax(derated.request, derated.types))
            if whole is not None:
                yield from self._raise_minima(derated, whole)
        for derated in self.derated:
            yield from self._learn_factors(derated, derated.rate_request)

    def _raise_minima(self, derated: DeratedRequests, easier: PlanOutcome) -> Iterator[None]:
        """From the plan without queueing on, raise the minima of failing models: their instances carry too little."""
        least: dict[str, float] = {}
        gpus = self._fleet_of(easier)
        for _ in range(ROUNDS):
            held = self._accept(gpus)
            yield
            if held:
                return
            before = unproven_outcome(self.plain, gpus, NOTHING)
            has = {model.name: model.throughput_rps for model in before.models}
            sustained = self.judge.sustained(before)
            for spec in limited_models(self.request):
                factor = sustained[spec.name]
                if spec.name in self.failing:
                    missing = min(2.0, max(1.02, 1.0 / factor if factor else 2.0))
                    least[spec.name] = max(
                        least.get(spec.name, 0.0), has[spec.name] * missing, offered_by(spec)
                    )
            replanned = self._plan_gpus(derated, derated.minimum_request(least))
            if replanned is None:
                return
            gpus = replanned
        self._accept(gpus)

    def _learn_factors(
        self, derated: DeratedRequests, make_request: Callable[[], PlanRequest | None]
    ) -> Iterator[None]:
        """Plan, simulate, set each model's factor to what its slices carry together, and replan."""
        seen: set[object] = set()
        worst = 0.0
        for _ in range(ROUNDS):
            request = make_request()
            gpus = None if request is None else self._plan_gpus(derated, request)
            if gpus is None:
                return
            key = _instance_counts(gpus)
            before = self.best
            held = self._accept(gpus)
            yield
            if key in seen or (held and self.best is before):
                return
            least = self._update_factors(derated, gpus, held)
            if not held and seen and least < max(HOPELESS, BETTER * worst):
                return
            worst = max(worst, least)
            seen.add(key)

    def _update_factors(self, derated: DeratedRequests, gpus: tuple[PlannedGpu, ...], held: bool) -> float:
        """Set each model's factor: the rate its instances carry together over the sum of what each carries alone.

        Returns the smallest multiple of its offered rate that a model carries.
        """
        outcome = unproven_outcome(self.plain, gpus, NOTHING)
        sustained = self.judge.sustained(outcome)
        isolated = derated.isolated_rps(gpus)
        for spec in limited_models(self.request):
            if not isolated.get(spec.name):
                continue
            factor = sustained[spec.name] * offered_by(spec) / isolated[spec.name]
            if not held and spec.name in self.failing and sustained[spec.name] >= 1:
                factor = SHORTER * min(factor, offered_by(spec) / isolated[spec.name])
            derated.factors[spec.name] = max(factor, 0.05)
        return min(sustained.values())

    def _plan_gpus(self, derated: DeratedRequests, request: PlanRequest) -> tuple[PlannedGpu, ...] | None:
        """The GPUs of a derived request's plan, with the request's points; None if no plan is found in time."""
        planned = self._plan_request(request)
        return None if planned is None else self._on_whole_fleet(derated.restore(planned.gpus))

    def _plan_request(self, request: PlanRequest) -> PlanOutcome | None:
        """A plan of a derived request; None if none is found in time."""
        seconds = self.left()
        if seconds < LEAST_S:
            return None
        return self._plan_within(request, min(seconds, max(LEAST_S, seconds / 3)))

    def _plan_within(self, request: PlanRequest, seconds: float) -> PlanOutcome | None:
        self.plans += 1
        self.progress(min(0.95, 0.3 + 0.08 * self.plans), f"plan {self.plans} and its simulation")
        planned = plan(replace(request, solver=replace(request.solver, time_limit_s=seconds)), reasons=False)
        return planned if planned.gpus else None

    def _on_whole_fleet(self, gpus: tuple[PlannedGpu, ...]) -> tuple[PlannedGpu, ...]:
        """All GPUs of the fleet; those not in `gpus` are unused."""
        known = {gpu.id: gpu for gpu in gpus}
        return tuple(known.get(gpu.id, PlannedGpu(gpu.id, gpu.type, False)) for gpu in self.fleet)

    def _accept(self, gpus: tuple[PlannedGpu, ...]) -> bool:
        """Whether these GPUs meet every demand and limit; stores them as `best` if they improve on it."""
        outcome = unproven_outcome(self.plain, gpus, NOTHING)
        if any(True for _ in violations(self.plain, outcome)):
            self.failing = ()
            return False
        if self.best is not None and not goal_of(self.request).better(
            self._values(outcome), self._values(self.best.outcome)
        ):
            self.failing = ()
            return True
        judgement = self.judge.check(outcome)
        self.failing, self.doubtful = judgement.failing, judgement.doubtful
        if judgement.failing:
            return False
        self.best = Candidate(outcome, judgement)
        return True


def _state_of(state: HostState | None, ids: tuple[str, ...]) -> HostState | None:
    """What runs on these GPUs now."""
    if state is None:
        return None
    return replace(state, gpus=tuple(gpu for gpu in state.gpus if gpu.id in ids))


def _instance_counts(gpus: tuple[PlannedGpu, ...]) -> object:
    """What determines queueing in a plan: how many instances of each kind each model has."""
    return tuple(
        sorted(
            (
                tenant.model,
                tenant.variant,
                tenant.stage,
                gpu.type,
                item.profile,
                tenant.batch_size,
                tenant.processes,
                tenant.share,
            )
            for gpu, item, tenant in tenants_on(gpus)
        )
    )
