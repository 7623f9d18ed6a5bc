"""Figures of a case's plan: the four metrics, with queueing from the simulator, and their intervals.

If throughputs are estimates the plan is simulated again with all of them at the lower and at the upper ends of their
intervals: the plan stays, its figures vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torchsplit_core.deployment.deploy import deploy
from torchsplit_core.evaluation.cross_gpu_traffic import leaving_share
from torchsplit_core.evaluation.mixes import TensorPair
from torchsplit_core.hardware import gpu_type
from torchsplit_core.latency_slo.simulation_input import server_id, simulation_request
from torchsplit_core.planning.request.edit import with_stages
from torchsplit_core.simulation import simulate
from torchsplit_core.values import (
    InputFault,
    ModelLoad,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Point,
    PoissonArrivals,
    SimulationOutcome,
    SimulationRequest,
    tenants_on,
)
from torchsplit_core.values.evaluation.outcome import (
    CaseFigures,
    CaseKey,
    EvaluatedCase,
    EvaluationSettings,
    IntervalEnds,
    ModelFigures,
)

FULL_LOAD = 0.9
"""Share of its own common load at which utilisations of plans are compared."""

DEPLOYED_AS = ("mig-parted", "nvidia-smi")
"""Formats in which a plan must be expressible to count as deployable."""

IntervalEnd = Literal["low_rps", "high_rps"]


def case_without_plan(key: CaseKey, request_sha256: str, why_not: str) -> EvaluatedCase:
    """The case of a baseline that gives no plan."""
    return EvaluatedCase(key, request_sha256, None, None, why_not=why_not)


def evaluate_case(
    key: CaseKey,
    request: PlanRequest,
    plan: PlanOutcome,
    pairs: Sequence[TensorPair],
    settings: EvaluationSettings,
) -> EvaluatedCase:
    """The case with its figures; without them if the plan has no slices."""
    gap = _first_gap(plan) if key.planner == "planner" else None
    if not any(gpu.slices for gpu in plan.gpus):
        why = "; ".join(
            (f"no plan with a slice within {settings.time_limit_s:g} s ({plan.status})", *plan.warnings)
        )
        return EvaluatedCase(key, plan.request_sha256, plan.status, gap, why_not=why)
    nominal = _SimulatedPlan(request, plan, settings, request)
    ends: dict[IntervalEnd, _SimulatedPlan] = {}
    if any(model.basis == "estimated" for model in plan.models):
        ends = {
            end: _SimulatedPlan(request, plan, settings, at_end(request, end))
            for end in ("low_rps", "high_rps")
        }
    models = _model_figures(request, plan, nominal, ends)
    bases = [model.basis for model in models if model.basis is not None]
    return EvaluatedCase(
        key,
        plan.request_sha256,
        plan.status if key.planner == "planner" else None,
        gap,
        max(bases, key=("measured", "emulated", "estimated").index, default=None),
        _case_figures(request, plan, pairs, nominal, ends, models),
        models,
        tuple("+".join(item.profile for item in gpu.slices if item.tenants) for gpu in plan.gpus),
    )


def _first_gap(plan: PlanOutcome) -> float | None:
    """(bound − value) / bound of the objective's first level; None without a bound."""
    return 0.0 if plan.objective.proven_levels else plan.objective.gap


def at_end(request: PlanRequest, end: IntervalEnd) -> PlanRequest:
    """The request with every throughput at this end of its interval, if it has one."""

    def shifted(point: Point) -> Point:
        rate: float | None = getattr(point, end)
        return point if rate is None else replace(point, throughput_rps=rate)

    return with_stages(
        request, lambda model, variant, stage: replace(stage, points=tuple(map(shifted, stage.points)))
    )


class _SimulatedPlan:
    """A plan with the points of `actual`, simulated at the demands and at its own full load."""

    def __init__(
        self, request: PlanRequest, plan: PlanOutcome, settings: EvaluationSettings, actual: PlanRequest
    ) -> None:
        self._plan, self._settings, self._actual = plan, settings, actual
        demands = {model.name: model.demand_rps for model in request.models}
        capacity = self._request(1.0)
        at_demand = simulate(capacity)
        self.loads = {load.name: load for load in at_demand.models}
        # The simulator's and the planner's rule: the minimum over stages of the rate of their servers.
        self.rates = {name: self.loads[name].capacity_rps if name in self.loads else 0.0 for name in demands}
        if actual is request:
            # The plan's figure includes links and batches as the planner counts them.
            self.rates |= {model.name: model.throughput_rps for model in plan.models}
        self.common_load = min(rate / demands[name] for name, rate in self.rates.items())
        self.utilisation = _utilisation(plan, at_demand)
        self.utilisation_full = None
        if self.common_load > 0:
            full = simulate(self._request(FULL_LOAD * self.common_load))
            self.utilisation_full = _utilisation(plan, full)

    def _request(self, factor: float) -> SimulationRequest:
        def arrivals(model: PlanModel) -> PoissonArrivals:
            return PoissonArrivals(factor * model.demand_rps)

        return replace(
            simulation_request(self._plan, self._actual, arrivals),
            requests_per_model=self._settings.requests_per_model,
            replications=self._settings.replications,
        )

    def ends(self) -> IntervalEnds:
        return IntervalEnds(sum(self.rates.values()), self.common_load, self.utilisation_full)


def _model_figures(
    request: PlanRequest,
    plan: PlanOutcome,
    nominal: _SimulatedPlan,
    ends: Mapping[IntervalEnd, _SimulatedPlan],
) -> tuple[ModelFigures, ...]:
    planned = {model.name: model for model in plan.models}
    all_figures = []
    for spec in request.models:
        planned_model, load = planned[spec.name], nominal.loads.get(spec.name)
        figures = ModelFigures(
            spec.name,
            planned_model.basis,
            spec.demand_rps,
            planned_model.throughput_rps,
            0.0,
            spec.max_latency_ms,
        )
        if load is not None:
            figures = replace(
                figures,
                served_rps=min(load.throughput_rps, load.capacity_rps),
                p50_ms=load.response_ms.p50,
                p95_ms=load.response_ms.p95,
                p95_ci95_ms=load.response_ci95_ms.p95,
                bytes_across_cuts_per_s=load.bytes_across_cuts_per_s,
            )
        if ends and planned_model.basis == "estimated":
            figures = _between(figures, ends["low_rps"].loads[spec.name], ends["high_rps"].loads[spec.name])
        all_figures.append(figures)
    return tuple(all_figures)


def _between(figures: ModelFigures, slow: ModelLoad, fast: ModelLoad) -> ModelFigures:
    """The figures with the response times at both ends: the higher the throughput, the shorter they are."""
    return replace(
        figures,
        p50_low_ms=fast.response_ms.p50,
        p95_low_ms=fast.response_ms.p95,
        p50_high_ms=slow.response_ms.p50,
        p95_high_ms=slow.response_ms.p95,
        overloaded_at_low=slow.stable is False,
    )


def _case_figures(
    request: PlanRequest,
    plan: PlanOutcome,
    pairs: Sequence[TensorPair],
    nominal: _SimulatedPlan,
    ends: Mapping[IntervalEnd, _SimulatedPlan],
    models: Sequence[ModelFigures],
) -> CaseFigures:
    loads = [nominal.rates[model.name] / model.demand_rps for model in request.models]
    cuts = [model.bytes_across_cuts_per_s for model in models if model.bytes_across_cuts_per_s is not None]
    used = [gpu for gpu in plan.gpus if any(item.tenants for item in gpu.slices)]
    held = sum(_compute(gpu.type, item.profile) for gpu in used for item in gpu.slices if item.tenants)
    return CaseFigures(
        total_rps=sum(nominal.rates.values()),
        served_rps=sum(model.served_rps for model in models),
        common_load=nominal.common_load,
        jain=sum(loads) ** 2 / (len(loads) * sum(load**2 for load in loads)),
        starved=sum(rate == 0 for rate in nominal.rates.values()),
        below_demand=sum(load < 1 - 1e-9 for load in loads),
        utilisation=nominal.utilisation,
        utilisation_full=nominal.utilisation_full,
        bytes_across_cuts_per_s=sum(cuts) if cuts else None,
        cross_gpu_bytes_per_s=_cross_gpu_bytes(plan, request, pairs, models),
        gpus_used=len(used),
        stranded_share=1 - held / sum(gpu_type(gpu.type).compute_slices for gpu in used),
        memory_share=_memory_share(plan),
        deployable=_deployable(plan),
        at_low=ends["low_rps"].ends() if ends else None,
        at_high=ends["high_rps"].ends() if ends else None,
    )


def _cross_gpu_bytes(
    plan: PlanOutcome, request: PlanRequest, pairs: Sequence[TensorPair], models: Sequence[ModelFigures]
) -> float | None:
    """Bytes/s of all pairs that leave a GPU; None if no pair has both of its ends."""
    served = {model.name: model.served_rps for model in models}
    rates = []
    for pair in pairs:
        share = leaving_share(plan, request, pair)
        if share is not None:
            rate = min(served[pair.first.partition("/")[0]], served[pair.second.partition("/")[0]])
            rates.append(rate * pair.bytes_per_request * share)
    return sum(rates) if rates else None


def _utilisation(plan: PlanOutcome, simulated: SimulationOutcome) -> float:
    """Busy share of the fleet's compute slices: each slice's busy time weighted by size; an unused GPU is idle."""
    busy = {load.id: load.utilisation for load in simulated.servers}
    work = sum(
        _compute(gpu.type, item.profile) * tenant.share * busy.get(server_id(gpu, item, tenant), 0.0)
        for gpu, item, tenant in tenants_on(plan.gpus)
    )
    return work / sum(gpu_type(gpu.type).compute_slices for gpu in plan.gpus)


def _compute(kind: str, profile: str) -> int:
    return gpu_type(kind).profile(profile).compute_slices


def _memory_share(plan: PlanOutcome) -> float | None:
    """The tenants' share of the fullest slice's memory; None if one of them is unknown."""
    shares = []
    for gpu in plan.gpus:
        for item in gpu.slices:
            size = gpu_type(gpu.type).profile(item.profile).memory_gib
            needs = [tenant.memory_gib for tenant in item.tenants]
            known = [need for need in needs if need is not None]
            if size is None or len(known) < len(needs):
                return None
            shares.append(sum(known) / size)
    return max(shares)


def _deployable(plan: PlanOutcome) -> bool:
    """Whether the files that set the slices up can be written."""
    try:
        return bool(deploy(plan, DEPLOYED_AS))
    except InputFault:
        return False
