"""Costs of the front, from profiles: they are measured together with slices of cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torchsplit_core.values import FleetEntry, PlanRequest, Profile, point_type
from torchsplit_core.values.plan.front import FrontCosts

COSTS_KEY, BYTES_KEY = "front", "bytes_per_request"
"""Keys of the front's costs in a device's environment, and of the bytes in the profile's."""


def with_frontend_costs(request: PlanRequest, profiles: Mapping[str, Profile]) -> PlanRequest:
    """The request with the front's costs and its models' bytes, if the fleet has cores and a profile has them.

    `profiles` are by model name. Of several hosts the slowest front counts; costs of the request are not replaced.
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
