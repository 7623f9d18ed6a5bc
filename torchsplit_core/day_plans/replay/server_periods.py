"""From when to when each server of a day's plans takes requests: the plans of its windows and the steps between them.

Seconds count from the trace's first value. The day is a circle: what the last transition of one day does is done when
the next begins.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchsplit_core.day_plans.window_requests import request_of_window, static_request, windows_of
from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.latency_slo.simulation_input import server_id, simulation_request
from torchsplit_core.planning.outcome.instances import planned_instances
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S
from torchsplit_core.values import (
    DayOutcome,
    EngineServer,
    InternalFault,
    PlanOutcome,
    PlanRequest,
    Server,
    SimulatedModel,
    Tenant,
    Transition,
)
from torchsplit_core.values.day.replay import SideName

Spec = tuple[str, str, Hashable]
"""What a tenant's server is known by: GPU type, profile, and what runs."""


@dataclass(frozen=True, slots=True)
class ServerPeriod:
    """A server of a model's variant that takes requests from one moment up to another. `drain_s`: how long what it
    works on then may go on."""

    variant: str
    server: Server | EngineServer
    begin_s: float
    end_s: float
    drain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedDay:
    """What serves a day. `models`: by name and variant, with stages, transfers and limits. `changes`: when changes are
    carried out, each as (begin, end), within the day and apart. `gpus`: (seconds, GPUs in use from then on)."""

    name: SideName
    periods: tuple[ServerPeriod, ...]
    models: Mapping[tuple[str, str], SimulatedModel]
    changes: tuple[tuple[float, float], ...]
    gpus: tuple[tuple[float, int], ...]
    warnings: tuple[str, ...] = ()

    @property
    def gpu_hours(self) -> float:
        """GPUs in use × hours."""
        ends = [moment for moment, _ in self.gpus[1:]] + [float(DAY_S)]
        return (
            sum(count * (end - begin) for (begin, count), end in zip(self.gpus, ends, strict=True)) / 3600.0
        )

    @property
    def most_gpus(self) -> int:
        """In use at once."""
        return max(count for _, count in self.gpus)

    @property
    def transition_s(self) -> float:
        """Seconds in which a change is carried out."""
        return sum(end - begin for begin, end in self.changes)


@dataclass(frozen=True, slots=True)
class _PlanServers:
    """The servers and models of a plan's simulation."""

    plan: PlanOutcome
    servers: Mapping[Spec, Server | EngineServer]
    models: Mapping[tuple[str, str], SimulatedModel]


def static_day(request: PlanRequest, outcome: DayOutcome) -> ServedDay:
    """The one plan, all day; it has slices. Raises InputFault as `simulation_request` does."""
    served = _plan_servers(static_request(request), outcome.static)
    return _Walk(served).day("static", served.models, ())


def windows_day(request: PlanRequest, outcome: DayOutcome, first_s: int) -> ServedDay:
    """The plans of the windows, which all have slices, with the transitions between them.

    A transition that would begin before the one before it has ended begins when that has. Raises InputFault as
    `simulation_request` does.
    """
    windows = windows_of(request)
    plans = []
    before: PlanOutcome | None = None
    for window in outcome.windows:
        plans.append(_plan_servers(request_of_window(request, window.name, before), window.plan))
        before = window.plan
    models = {key: model for served in reversed(plans) for key, model in served.models.items()}
    walk = _Walk(plans[0])
    count = len(windows)
    # A day before the trace begins, so that what wraps round midnight is there.
    boundary = float((windows[0].minutes[0] * 60 - first_s) % DAY_S - DAY_S)
    warnings: list[str] = []
    for number in range(2 * count + 1):
        planned, following = outcome.windows[number % count], (number + 1) % count
        boundary += windows[number % count].hours * 3600.0
        change = planned.transition
        if change is None or boundary > 2 * DAY_S:
            continue
        seconds = sum(step.seconds or 0.0 for step in change.steps)
        begin = boundary - seconds if planned.ahead else boundary
        if begin < walk.now:
            warnings.append(
                f"the change from {planned.name} to {windows[following].name} begins "
                f"{walk.now - begin:.4g} s late, when the change before it has ended"
            )
        walk.change(change, plans[number % count], plans[following], max(begin, walk.now))
    return walk.day("windows", models, tuple(dict.fromkeys(warnings)))


def _plan_servers(request: PlanRequest, plan: PlanOutcome) -> _PlanServers:
    simulated = simulation_request(plan, request)
    by_id = {server.id: server for server in simulated.servers}
    by_name = {model.name: model for model in simulated.models}
    servers: dict[Spec, Server | EngineServer] = {}
    models: dict[tuple[str, str], SimulatedModel] = {}
    for instance in planned_instances(plan.gpus, request):
        server = by_id.get(server_id(instance.gpu, instance.slice, instance.tenant))
        if server is not None:
            servers[spec_of(instance.gpu.type, instance.slice.profile, instance.tenant)] = server
            model = by_name[instance.model.name]
            models[model.name, instance.variant.name] = model
    return _PlanServers(plan, servers, models)


def spec_of(gpu_type: str, profile: str, tenant: Tenant) -> Spec:
    """What the tenant's server is known by: its slice, and what a transition knows the tenant by."""
    return gpu_type, profile, tenant_key(tenant)


@dataclass(slots=True, eq=False)
class _Instance:
    """A tenant on its slice, from when it serves to when it no longer takes requests."""

    gpu: str
    start: int | None
    spec: Spec
    variant: str
    server: Server | EngineServer | None
    begin_s: float
    group: list[_Instance] = field(default_factory=list)
    gpus: int = 1
    end_s: float = float("inf")
    drain_s: float = 0.0


class _Walk:
    """Follows what runs through transitions, in the names of the GPUs of the plan that runs."""

    def __init__(self, first: _PlanServers) -> None:
        self.now = -2.0 * DAY_S
        self.running: list[_Instance] = []
        self.ended: list[_Instance] = []
        self.changes: list[tuple[float, float]] = []
        self.gpus: list[tuple[float, int]] = []
        groups: dict[str, list[_Instance]] = {}
        for gpu in first.plan.gpus:
            for item in gpu.slices:
                for tenant in item.tenants:
                    spec = spec_of(gpu.type, item.profile, tenant)
                    self._start(gpu.id, item.start, spec, tenant, first, self.now, groups)
        self._count(self.now)

    def change(self, change: Transition, before: _PlanServers, after: _PlanServers, begin_s: float) -> None:
        """Carry the steps out from one moment on, and take over the names of the plan that runs then."""
        types = {gpu.id: gpu.type for gpu in before.plan.gpus}
        moment = begin_s
        groups: dict[str, list[_Instance]] = {}
        for step in change.steps:
            ends = moment + (step.seconds or 0.0)
            tenants = [tenant for tenant in step.tenants if isinstance(tenant, Tenant)]
            if step.action == "start" and tenants:
                self._count(moment, coming=step.gpu)
                for tenant in tenants:
                    spec = spec_of(types[step.gpu], step.profile, tenant)
                    servers = after if spec in after.servers else before
                    self._start(step.gpu, step.start, spec, tenant, servers, ends, groups)
            elif step.action == "stop":
                for tenant in tenants:
                    spec = spec_of(types[step.gpu], step.profile, tenant)
                    self._stop(step.gpu, step.start, spec, moment, step.seconds or 0.0)
                self._count(moment, coming=step.gpu)
                self._count(ends)
            moment = ends
        if change.steps:
            self.changes.append((begin_s, moment))
        self.now = moment
        self._rename(change, after.plan)

    def _start(
        self,
        gpu: str,
        start: int | None,
        spec: Spec,
        tenant: Tenant,
        servers: _PlanServers,
        moment: float,
        groups: dict[str, list[_Instance]],
    ) -> None:
        instance = _Instance(
            gpu, start, spec, tenant.variant, servers.servers.get(spec), moment, gpus=tenant.gpus
        )
        name = None if tenant.engine is None else tenant.engine.group
        instance.group = groups.setdefault(name, []) if name is not None else []
        instance.group.append(instance)
        self.running.append(instance)

    def _stop(self, gpu: str, start: int | None, spec: Spec, moment: float, drain_s: float) -> None:
        for instance in self.running:
            if (instance.gpu, instance.start, instance.spec) == (gpu, start, spec):
                instance.end_s, instance.drain_s = moment, drain_s
                self.running.remove(instance)
                self.ended.append(instance)
                return
        raise InternalFault(f"a transition stops what does not run: {spec} on {gpu} at {start}")

    def _count(self, moment: float, coming: str | None = None) -> None:
        gpus = {instance.gpu for instance in self.running} | ({coming} if coming else set())
        self.gpus.append((moment, len(gpus)))

    def _rename(self, change: Transition, plan: PlanOutcome) -> None:
        """The GPUs and starts of the plan in place of the host's."""
        hosts = {mapped.plan_gpu: mapped.host_gpu for mapped in change.mapping}
        left, renamed = list(self.running), []
        for gpu in plan.gpus:
            for item in gpu.slices:
                for tenant in item.tenants:
                    spec = spec_of(gpu.type, item.profile, tenant)
                    host = hosts.get(gpu.id, gpu.id)
                    match = next((i for i in left if i.gpu == host and i.spec == spec), None)
                    if match is None:
                        raise InternalFault(f"after a transition {spec} does not run on {host}")
                    left.remove(match)
                    renamed.append((match, gpu.id, item.start))
        if left:
            raise InternalFault(f"after a transition {left[0].spec} runs, which is not of the plan")
        for instance, gpu_id, start in renamed:
            instance.gpu, instance.start = gpu_id, start

    def day(
        self, name: SideName, models: Mapping[tuple[str, str], SimulatedModel], warnings: tuple[str, ...]
    ) -> ServedDay:
        """What serves the day of the trace."""
        periods = tuple(_periods([*self.ended, *self.running]))
        return ServedDay(name, periods, models, within_day(self.changes), _steps_of(self.gpus), warnings)


def _periods(instances: Sequence[_Instance]) -> Iterator[ServerPeriod]:
    """The servers that take requests in the day; an engine on several GPUs does while it runs on all of them."""
    for instance in instances:
        if (
            instance.server is None
            or instance.group[0] is not instance
            or len(instance.group) < instance.gpus
        ):
            continue
        begin = to_grid(max(0.0, *(member.begin_s for member in instance.group)))
        end = to_grid(min(float(DAY_S), *(member.end_s for member in instance.group)))
        if begin < end:
            yield ServerPeriod(instance.variant, instance.server, begin, end, instance.drain_s)


def to_grid(moment_s: float) -> float:
    """The moment in whole microseconds: sums of steps are no exact decimals, and moments that are one are one."""
    return round(moment_s, 6)


def within_day(changes: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The stretches of the day that these cover, in order and apart."""
    apart: list[tuple[float, float]] = []
    clipped = ((to_grid(max(0.0, begin)), to_grid(min(float(DAY_S), end))) for begin, end in changes)
    for begin, end in sorted(clipped):
        if begin >= end:
            continue
        if apart and begin <= apart[-1][1]:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end))
        else:
            apart.append((begin, end))
    return tuple(apart)


def _steps_of(gpus: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """GPUs in use from the day's beginning on."""
    count, steps = 0, [(0.0, 0)]
    for moment, number in sorted(gpus, key=lambda item: item[0]):
        if moment <= 0:
            count = number
            steps[0] = (0.0, count)
        elif moment < DAY_S:
            steps.append((moment, number))
    return tuple(steps)
