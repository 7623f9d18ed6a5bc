"""Names the GPUs of a plan, and shifts its slices, so that most of what runs now stays.

Only GPUs that can take each other's place change their names, and slices move to other legal starts of their GPU. So no
figure of the plan changes, and no proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace

from torchsplit_core.hardware.host_state.assignment import Match, match_gpus
from torchsplit_core.planning.problem.held_gpus import touched_gpus
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest, StateGpu


def near_current(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The plan as near as it comes to the request's `current`, with its number of touched GPUs (None where instances of
    others stand on some GPU: whether these have to go is not said by a plan). The same outcome without a current state.

    GPUs are paired as a transition pairs them: most tenants stay, then most instances, then GPUs.
    """
    if request.current is None or not outcome.gpus:
        return outcome
    states = {gpu.id: gpu for gpu in request.current.gpus}
    groups: dict[Hashable, list[FleetGpu]] = defaultdict(list)
    for gpu in list_gpus(request.gpus):
        groups[gpu.type, gpu.layouts, gpu.either, gpu.price, gpu.node].append(gpu)
    planned = {gpu.id: gpu for gpu in outcome.gpus}
    near: dict[str, PlannedGpu] = {}
    for group in groups.values():
        targets = [planned[gpu.id] for gpu in group if planned[gpu.id].slices]
        hosts = [states.get(gpu.id, StateGpu(gpu.id, gpu.type)) for gpu in group]
        near |= {match.host.id: _on_host(match) for match in match_gpus(targets, hosts)}
    gpus = tuple(near[gpu.id] for gpu in outcome.gpus)
    is_ours = not any(item.foreign for gpu in request.current.gpus for item in gpu.instances)
    return replace(outcome, gpus=gpus, touched_gpus=touched_gpus(request, gpus) if is_ours else None)


def _on_host(match: Match) -> PlannedGpu:
    if match.target is None or match.pair is None:
        return PlannedGpu(match.host.id, match.host.type, used=False)
    slices = (
        replace(item, start=start) for item, start in zip(match.target.slices, match.pair.starts, strict=True)
    )
    return replace(match.target, id=match.host.id, slices=tuple(sorted(slices, key=lambda item: item.start)))
