"""What the front costs, from the profiles of a request: it was measured where their slices of cores were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torchsplit_core.values import FleetEntry, PlanRequest, Profile, point_type
from torchsplit_core.values.plan.front import FrontCosts

COSTS_KEY, BYTES_KEY = "front", "bytes_per_request"
"""Where a profile's environment has them: a device's, and the model's own."""


def with_frontend_costs(request: PlanRequest, profiles: Mapping[str, Profile]) -> PlanRequest:
    """The request with the front's costs and its models' bytes, where the fleet has cores and a profile tells them.

    `profiles` are by the name of the model. Of several hosts the slowest front counts; a request that has costs keeps
    them.
    """
    if request.front is not None or not any(map(_is_host, request.gpus)):
        return request
    slowest = max(_measured_costs(profiles.values()), key=lambda costs: costs.ms_per_request, default=None)
    if slowest is None:
        return request
    models = tuple(
        replace(model, bytes_per_request=_request_bytes(profiles[model.name]))
        if model.name in profiles
        else model
        for model in request.models
    )
    return replace(request, front=slowest, models=models)


def _is_host(entry: FleetEntry) -> bool:
    return point_type(entry.type) != entry.type


def _measured_costs(profiles: Iterable[Profile]) -> Iterable[FrontCosts]:
    for profile in profiles:
        devices: Any = profile.environment.get("devices")
        for device in devices.values() if isinstance(devices, dict) else ():
            if isinstance(device, dict) and isinstance(device.get(COSTS_KEY), dict):
                yield FrontCosts(**device[COSTS_KEY])


def _request_bytes(profile: Profile) -> float | None:
    size = profile.environment.get(BYTES_KEY)
    return float(size) if isinstance(size, int | float) else None
