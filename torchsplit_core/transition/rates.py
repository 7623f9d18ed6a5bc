"""What models get while instances stop and start, and what they lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum

from torchsplit_core.hardware.host_state.validity import engine_group
from torchsplit_core.values import PlanRequest, Tenant, TransitionStep

StageKey = tuple[str, str, str]
"""Model, variant, stage."""


class Running:
    """The tenants that run: requests/s of each one by its stage.

    An engine on several GPUs gives its requests/s where its tenants run on all of them, and none where one lacks.
    """

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        self.rates: dict[StageKey, tuple[float, ...]] = {}
        self.members: dict[tuple[StageKey, str], int] = {}
        for tenant in tenants:
            self._add(tenant)

    def copy(self) -> Running:
        """One that changes by itself."""
        copied = Running()
        copied.rates, copied.members = dict(self.rates), dict(self.members)
        return copied

    def apply(self, step: TransitionStep) -> set[str]:
        """Start or stop the step's tenants; the models whose tenants these are."""
        tenants = [tenant for tenant in step.tenants if isinstance(tenant, Tenant)]
        for tenant in tenants:
            if step.action == "start":
                self._add(tenant)
            elif step.action == "stop":
                self._remove(tenant)
        return {tenant.model for tenant in tenants}

    def _add(self, tenant: Tenant) -> None:
        if self._count(tenant, 1) == tenant.gpus:
            key = _stage_key(tenant)
            self.rates[key] = (*self.rates.get(key, ()), tenant.throughput_rps * tenant.gpus)

    def _remove(self, tenant: Tenant) -> None:
        if self._count(tenant, -1) == tenant.gpus - 1:
            rates = list(self.rates[_stage_key(tenant)])
            rates.remove(tenant.throughput_rps * tenant.gpus)
            self.rates[_stage_key(tenant)] = tuple(rates)

    def _count(self, tenant: Tenant, change: int) -> int:
        """GPUs on which the tenant runs after one comes or goes."""
        group = engine_group(tenant)
        if group is None:
            return max(change, 0)
        key = _stage_key(tenant), group
        self.members[key] = self.members.get(key, 0) + change
        return self.members[key]


class Throughputs:
    """Throughputs of models: of each variant the least over its stages of the sums of their instances, and of a model
    the sum of its variants, which may run side by side during a change.

    A variant's stages are those of the request where it is given, else those that run before or after.
    """

    def __init__(self, tenants: Iterable[Tenant], request: PlanRequest | None) -> None:
        stages: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for tenant in tenants:
            stages[tenant.model][tenant.variant].add(tenant.stage)
        for model in request.models if request is not None else ():
            for variant in model.variants:
                if variant.name in stages[model.name]:
                    stages[model.name][variant.name] |= {stage.name for stage in variant.stages}
        self.stages = {model: variants for model, variants in sorted(stages.items()) if variants}

    def of(self, model: str, running: Running) -> float:
        """Requests/s of a model."""
        return fsum(
            min(fsum(running.rates.get((model, variant, stage), ())) for stage in stages)
            for variant, stages in self.stages.get(model, {}).items()
        )


Timeline = tuple[tuple[float, float], ...]
"""Seconds since the beginning, and requests/s from then on; ascending, the last one at the end of the change."""


def timelines(
    steps: Sequence[TransitionStep], throughputs: Throughputs, running: Running
) -> dict[str, Timeline]:
    """By model, its throughput during the steps, from the tenants that run before.

    A tenant that stops serves nobody new from its step's beginning, one that starts serves from its step's end.
    """
    running, now = running.copy(), 0.0
    lines = {model: [(0.0, throughputs.of(model, running))] for model in throughputs.stages}
    for step in steps:
        at, now = now, now + (step.seconds or 0.0)
        for model in running.apply(step):
            lines[model].append((now if step.action == "start" else at, throughputs.of(model, running)))
    return {model: (*line, (now, line[-1][1])) for model, line in lines.items()}


class Losses:
    """Model-seconds below demand: the integral of max(0, 1 − throughput / demand) over the steps."""

    def __init__(self, throughputs: Throughputs, demands: Mapping[str, float]) -> None:
        self.throughputs = throughputs
        self.demands = {model: demand for model, demand in demands.items() if demand > 0}

    def shortfalls(self, running: Running, models: Iterable[str] | None = None) -> dict[str, float]:
        """The share of its demand that each model misses, where it misses any."""
        shares = {
            model: 1 - self.throughputs.of(model, running) / self.demands[model]
            for model in (self.demands if models is None else self.demands.keys() & models)
        }
        return {model: share for model, share in shares.items() if share > 0}

    def over(
        self, steps: Sequence[TransitionStep], running: Running, now: Mapping[str, float]
    ) -> tuple[dict[str, float], Running, dict[str, float]]:
        """What models lose in these steps, and what runs and is missing after them, from what runs and is missing
        `now`; both stay.

        A tenant that stops is drained, so it serves nobody new from the step's beginning; one that starts serves from
        its end.
        """
        running, shortfalls = running.copy(), dict(now)
        lost: dict[str, float] = {}
        for step in steps:
            if step.action == "stop":
                self._update(shortfalls, running, step)
            for model, share in shortfalls.items():
                lost[model] = lost.get(model, 0.0) + share * (step.seconds or 0.0)
            if step.action == "start":
                self._update(shortfalls, running, step)
        return lost, running, shortfalls

    def _update(self, shortfalls: dict[str, float], running: Running, step: TransitionStep) -> None:
        models = running.apply(step)
        for model in models:
            shortfalls.pop(model, None)
        shortfalls.update(self.shortfalls(running, models))


def _stage_key(tenant: Tenant) -> StageKey:
    return (tenant.model, tenant.variant, tenant.stage)
