"""Settings of serving: address, limits, access, stand-ins for missing slices; settings of a load test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchsplit_core.values import InputFault
from torchsplit_core.values.limits import check_number

StandIn = Literal["none", "cpu", "sm"]
"""What replaces a slice that this host lacks: nothing, CPU cores, or a number of SMs of a whole GPU."""

DEFAULT_PORT = 8000
"""Triton's HTTP port, which its clients assume."""
LONGEST_QUEUE = 1000
"""Rows of a model that may wait; further requests get 429."""
DEADLINE_S = 30.0
"""Longest time for a response, and the default if a client names none; then it gets 504."""

WARM_UP_RUNS = 3
"""Runs at the largest batch before a worker is ready."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a server, checked before a request is handled.

    `head_bytes`, `head_s`: of a request's head. `body_s`: time for its body; `body_bytes`: its size, compressed or
    not; `json_bytes`: the JSON in it. `send_s`: time in which a client reads nothing of its response. `idle_s`: between
    requests. `connections`, `requests`, `held_bytes` (bytes of bodies): at once.
    """

    head_bytes: int = 16 * 1024
    head_s: float = 10.0
    body_s: float = 30.0
    send_s: float = 30.0
    idle_s: float = 75.0
    connections: int = 4096
    requests: int = 4096
    body_bytes: int = 512 * 2**20
    json_bytes: int = 64 * 2**20
    held_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Who may send requests. `hosts`: accepted host names ("*": any). `token`: the required bearer token.

    `certificate` and `key` are PEM files; with them the server uses TLS.
    """

    hosts: tuple[str, ...] = ("*",)
    token: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of `serve`. `port` 0 takes a free one; `queue_limit` counts the waiting rows of each model; `drain_s` is
    the time for requests in flight once the server is told to stop."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    queue_limit: int = LONGEST_QUEUE
    deadline_s: float = DEADLINE_S
    drain_s: float = 30.0
    stand_in: StandIn = "none"
    trust: bool = False
    limits: RequestLimits = RequestLimits()
    access: AccessSettings = AccessSettings()


def settings_from_dict(content: Mapping[str, Any]) -> ServeSettings:
    """The settings from what `asdict` made of them, after a way through JSON."""
    access = AccessSettings(**content["access"] | {"hosts": tuple(content["access"]["hosts"])})
    return ServeSettings(**{**content, "limits": RequestLimits(**content["limits"]), "access": access})


DEFAULT_DURATION_S = 30.0
MOST_CONNECTIONS = 1000
"""Connections of a load generator."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Every rate times `load`, for `duration_s`; the same `seed` gives the same arrivals."""

    duration_s: float = DEFAULT_DURATION_S
    load: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ReadyServer:
    """The address and the models of a server that is ready."""

    url: str
    models: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> str:
        """One line of JSON, for the process that started the server."""
        return json.dumps({"url": self.url, "models": self.models, "warnings": self.warnings})


def check_settings(settings: ServeSettings) -> None:
    """Raises InputFault for a number out of range."""
    check_port(settings.port)
    if not 1 <= settings.queue_limit <= 10_000_000:
        problem = f"is {settings.queue_limit}, outside 1 to 10,000,000 rows"
        raise InputFault("--queue-limit", problem, f"Give, for example, {LONGEST_QUEUE}.")
    check_number("--deadline-s", settings.deadline_s, positive=True)
    check_number("--drain-s", settings.drain_s)


def check_port(port: int) -> None:
    """Raises InputFault for a number that is no port; 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise InputFault("--port", f"is {port}, outside 0 to 65535", f"Give, for example, {DEFAULT_PORT}.")
