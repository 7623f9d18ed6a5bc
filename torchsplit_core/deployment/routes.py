"""Routes of each model's requests, for the routers."""

from __future__ import annotations

from collections.abc import Callable

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.deployment.hosts import Host
from torchsplit_core.deployment.workload import Route, ServedPart, SliceServer, Workload
from torchsplit_core.files import write_text
from torchsplit_core.values import InputFault, StageValue, quoted
from torchsplit_core.values.serving.datatypes import OF_TORCH, Datatype
from torchsplit_core.values.serving.routes import (
    RoutedModel,
    RoutedOutput,
    RoutedTensor,
    Routes,
    RouteServer,
    RouteStep,
)


def datatype(value: StageValue) -> Datatype:
    """Its name in the protocol. Raises InputFault for a dtype that the protocol lacks."""
    if value.dtype is None or value.dtype not in OF_TORCH:
        raise InputFault(
            f"value {value.name}",
            f"has the dtype {quoted(value.dtype)}, which Open Inference Protocol v2 does not have",
            f"Give the model inputs and results of {', '.join(OF_TORCH)}; for a cut, forbid this variant.",
        )
    return OF_TORCH[value.dtype]


def sizes(value: StageValue) -> tuple[int, ...]:
    """Its shape, −1 for a free size."""
    return tuple(size if isinstance(size, int) else -1 for size in value.shape or ())


MAX_SHARED_SERVERS = 1000
"""Servers that every host's routes list. Above, a host lists its own, and others only for parts it lacks."""


def host_route_file(
    name: str, workload: Workload, host: Host, url: Callable[[SliceServer], str]
) -> DeploymentFile:
    """The routes of all models for the router of one host, every server by its own address."""

    def servers(part: ServedPart) -> tuple[RouteServer, ...]:
        serving = workload.servers_for(part)
        if len(workload.servers) > MAX_SHARED_SERVERS:
            serving = tuple(server for server in serving if server.host is host) or serving
        return tuple(RouteServer(url(server), planned_rps(server, part)) for server in serving)

    return _route_file(name, workload.routes, servers)


def service_route_file(
    name: str, routes: tuple[Route, ...], url: Callable[[ServedPart], str]
) -> DeploymentFile:
    """The same with one address for all servers of a part."""
    return _route_file(name, routes, lambda part: (RouteServer(url(part)),))


def _route_file(
    name: str, routes: tuple[Route, ...], servers: Callable[[ServedPart], tuple[RouteServer, ...]]
) -> DeploymentFile:
    models = tuple(
        RoutedModel(
            route.model,
            tuple(map(_tensor, route.inputs)),
            tuple(
                RoutedOutput(name, datatype(value), sizes(value), value.name) for name, value in route.outputs
            ),
            tuple(
                RouteStep(
                    step.name,
                    tuple(value.name for value in step.inputs),
                    tuple(value.name for value in step.outputs),
                    servers(step),
                )
                for step in route.steps
            ),
        )
        for route in routes
    )
    return DeploymentFile(name, write_text(Routes(models)))


def _tensor(value: StageValue) -> RoutedTensor:
    return RoutedTensor(value.name, datatype(value), sizes(value))


def planned_rps(server: SliceServer, part: ServedPart) -> float:
    """The part's planned requests/s on this server."""
    return sum(
        tenant.throughput_rps
        for tenant in server.slice.tenants
        if (tenant.model, tenant.variant, tenant.stage) == (part.model, part.variant, part.stage)
    )
