"""The transition from a state to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.gpu_ids import host_of
from torchsplit_core.hardware.host_state.assignment import FleetAssignment, FleetMatching, Match, is_mig_on
from torchsplit_core.hardware.host_state.engine_groups import with_common_groups
from torchsplit_core.hardware.host_state.validity import check_planned, check_state, engine_group, has_mig
from torchsplit_core.transition.order import MOST_TRIES, Order, best_order, evaluate
from torchsplit_core.transition.parts import ChangePart, bridged, parts_of
from torchsplit_core.transition.rates import Losses, Running, Throughputs, timelines
from torchsplit_core.transition.times import ChangeTimes
from torchsplit_core.transition.verification import transition_fault
from torchsplit_core.values import (
    WHOLE_GPU,
    HostState,
    InputFault,
    InternalFault,
    MappedGpu,
    MappedInstance,
    ModelDuring,
    PlanOutcome,
    PlanRequest,
    StateGpu,
    Transition,
    TransitionCounts,
    TransitionStep,
    quoted,
    tenants_on,
)

MOST_ORDERED = 12
"""Parts up to which assignments of equal value are compared by what they lose, and bridges are tried in every order."""
MOST_BRIDGES = 8
ALTERNATIVE_SHARE = 4
"""Times the tries of one order that all other assignments of equal value get together."""
_SPLIT_GROUPS = (
    "every way that leaves most as it is gives an engine GPUs of several hosts; "
    "plan from this state (plan --current), which gives each GPU the host's own id"
)


def plan_transition(
    plan: PlanOutcome,
    state: HostState,
    *,
    request: PlanRequest | None = None,
    prefer_loss: bool = False,
    evict_foreign: bool = False,
    times: ChangeTimes | None = None,
    most_tries: int = MOST_TRIES,
) -> Transition:
    """The transition that leaves most tenants untouched, then keeps most instances, then touches fewest GPUs, then
    loses least; with `prefer_loss` the loss comes before the GPUs.

    Infeasible, with a message, where the plan needs more GPUs of a type than there are, or places that others hold and
    `evict_foreign` is not given. `request` gives demands; without it a model's is the lesser of its throughputs before
    and after. `most_tries`: parts put behind begun orders for one assignment of GPUs, a few times as many for all
    others of equal value. Verified without the search. Raises InputFault for an outcome without a plan, a plan
    that cannot be, or a state that no host can be in.
    """
    if plan.status not in ("optimal", "feasible"):
        problem = f"has the status {quoted(plan.status)}, so there is nothing to change to"
        raise InputFault("plan", problem, "Read the outcome's conflicts, and plan again.")
    if request is not None:
        missing = {model.name for model in plan.models} - {model.name for model in request.models}
        if missing:
            problem = f"has no model {quoted(min(missing))}, which the plan has"
            raise InputFault("request", problem, "Pass the request that the plan answers.")
    check_planned(plan.gpus)
    check_state(state)
    state = with_common_groups(state, plan.gpus)
    searched = _Search(plan, state, request, times or ChangeTimes(), evict_foreign, most_tries)
    outcome = searched.best(prefer_loss)
    fault = transition_fault(plan, state, outcome)
    if fault is not None:
        raise InternalFault(f"the transition is at fault: {fault}")
    return outcome


@dataclass(frozen=True, slots=True)
class _Candidate:
    assignment: FleetAssignment
    order: Order
    spare: str | None


class _Search:
    def __init__(
        self,
        plan: PlanOutcome,
        state: HostState,
        request: PlanRequest | None,
        times: ChangeTimes,
        evict: bool,
        most_tries: int,
    ) -> None:
        self.plan, self.state, self.times, self.evict = plan, state, times, evict
        self.most_tries, self.tries = most_tries, 0
        before = [tenant for gpu in state.gpus for item in gpu.instances for tenant in item.planned_tenants]
        after = [tenant for _, _, tenant in tenants_on(plan.gpus)]
        self.throughputs = Throughputs((*before, *after), request)
        self.running, self.planned = Running(before), Running(after)
        self.demands = _demands(self.throughputs, self.running, self.planned, request)
        self.losses = Losses(self.throughputs, self.demands)

    def best(self, prefer_loss: bool) -> Transition:
        """The best transition, with what is proven of it."""
        matching = FleetMatching(self.plan, self.state, evict=self.evict)
        first = next(filter(_keeps_groups, matching.assignments()), None)
        if first is None:
            message = "; ".join(matching.obstacles()) or _SPLIT_GROUPS
            return Transition("infeasible", 0, 0, 0, None, message=message)
        chosen = self._candidate(first)
        if len(chosen.order.parts) <= MOST_ORDERED:
            self.tries = 0
            for assignment in filter(_keeps_groups, matching.assignments(touched=not prefer_loss)):
                if chosen.order.value == (0.0, 0.0) or self.tries > ALTERNATIVE_SHARE * self.most_tries:
                    break
                candidate = self._candidate(assignment)
                if candidate.order.value < chosen.order.value:
                    chosen = candidate
        return self._outcome(chosen, first)

    def _candidate(self, assignment: FleetAssignment) -> _Candidate:
        parts = [part for match in assignment.matches for part in parts_of(match, self.times)]
        order = best_order(parts, self.losses, self.running, self.most_tries)
        self.tries += order.tries
        return self._with_spare(assignment, order)

    def _with_spare(self, assignment: FleetAssignment, order: Order) -> _Candidate:
        """With bridges over the free GPU that helps the worst model most."""
        best = _Candidate(assignment, order, None)
        tried: set[tuple[str, bool | None]] = set()
        for match in assignment.matches:
            host = match.host
            if order.value[0] == 0 or not _is_free(match) or (host.type, host.mig_enabled) in tried:
                continue
            tried.add((host.type, host.mig_enabled))
            candidate = self._bridged(assignment, order, host)
            if candidate.order.value < best.order.value:
                best = candidate
        return best

    def _bridged(self, assignment: FleetAssignment, order: Order, spare: StateGpu) -> _Candidate:
        """Parts bridged one by one, each time the one that helps most where it stands; then in their best order."""
        first = order
        for _ in range(MOST_BRIDGES):
            options = []
            for number, part in enumerate(order.parts):
                if part.type == spare.type and _can_bridge(part, spare):
                    steps = bridged(part, spare.id, self.times)
                    others = [*order.parts[:number], steps, *order.parts[number + 1 :]]
                    options.append(evaluate(others, self.losses, self.running))
            better = min(options, key=lambda option: option.value, default=order)
            if better.value >= order.value:
                break
            order = better
        if order is first:
            return _Candidate(assignment, order, None)
        ordered = best_order(order.parts, self.losses, self.running, self.most_tries)
        self.tries += ordered.tries
        return _Candidate(assignment, min(order, ordered, key=lambda option: option.value), spare.id)

    def _outcome(self, chosen: _Candidate, first: FleetAssignment) -> Transition:
        matches, steps = (
            chosen.assignment.matches,
            [step for part in chosen.order.parts for step in part.steps],
        )
        _, untouched, kept_instances, touched = chosen.assignment.value
        best_touched = -first.value[3]
        counts = TransitionCounts(untouched, kept_instances, best_touched)
        return Transition(
            status="optimal" if -touched == best_touched else "feasible",
            untouched_tenants=untouched,
            kept_instances=kept_instances,
            touched_gpus=-touched,
            bound=counts,
            mapping=tuple(
                _mapped(match) for match in matches if match.target is not None and match.pair is not None
            ),
            steps=tuple(steps),
            during=self._during(steps, chosen.order.lost),
            spare_gpu=chosen.spare,
            warnings=self._warnings(),
            exact_order=chosen.order.exact,
            request_sha256=self.plan.request_sha256,
        )

    def _during(self, steps: Sequence[TransitionStep], lost: Mapping[str, float]) -> tuple[ModelDuring, ...]:
        lines = timelines(steps, self.throughputs, self.running)
        return tuple(
            ModelDuring(
                model,
                min(rate for _, rate in line),
                line[0][1],
                self.throughputs.of(model, self.planned),
                self.demands.get(model),
                lost.get(model, 0.0),
            )
            for model, line in lines.items()
        )

    def _warnings(self) -> tuple[str, ...]:
        return (
            f"untested on hardware: a drain is assumed to take {self.times.drain_s:g} s, a start with load and warm-up "
            f"{self.times.start_s:g} s where no other time is given; the times of create and destroy are published",
        )


def _demands(
    throughputs: Throughputs, running: Running, planned: Running, request: PlanRequest | None
) -> dict[str, float]:
    """What is to be kept up of each model."""
    asked = {model.name: model.demand_rps for model in request.models} if request is not None else {}
    return {
        model: asked.get(model, min(throughputs.of(model, running), throughputs.of(model, planned)))
        for model in throughputs.stages
    }


def _keeps_groups(assignment: FleetAssignment) -> bool:
    """Whether each engine on several GPUs gets GPUs of one host."""
    hosts: dict[str, str | None] = {}
    return all(
        hosts.setdefault(group, host_of(match.host.id)) == host_of(match.host.id)
        for match in assignment.matches
        if match.target is not None
        for item in match.target.slices
        for tenant in item.tenants
        if (group := engine_group(tenant)) is not None
    )


def _is_free(match: Match) -> bool:
    return match.target is None and not match.host.instances


def _can_bridge(part: ChangePart, spare: StateGpu) -> bool:
    """Whether the instances that go could stand on the spare GPU as it is, and have tenants of a plan to save."""
    if not any(item.planned_tenants for item in part.removed):
        return False
    if part.steps[0].gpu == spare.id:
        return False  # bridged already
    if any(tenant.gpus > 1 for item in part.removed for tenant in item.planned_tenants):
        return False  # one GPU does not hold an engine on several
    if not has_mig(gpu_type(spare.type)):
        return True
    is_whole = any(item.profile == WHOLE_GPU for item in part.removed)
    return is_mig_on(spare) is not is_whole and not (is_whole and is_mig_on(spare) is None)


def _mapped(match: Match) -> MappedGpu:
    assert match.target is not None
    assert match.pair is not None
    present = {(item.profile, item.start) for item in match.host.instances if item.foreign is None}
    instances = [
        MappedInstance(item.profile, start, (item.profile, start) in present, item.tenants)
        for item, start in zip(match.target.slices, match.pair.starts, strict=True)
    ]
    return MappedGpu(match.target.id, match.host.id, tuple(sorted(instances, key=lambda item: item.start)))
