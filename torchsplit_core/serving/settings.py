"""How a plan is served: the port, the limits of queues and answers, and what stands in for slices that are not here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchsplit_core.values import InputFault
from torchsplit_core.values.limits import check_number

StandIn = Literal["none", "cpu", "sm"]
"""What a slice runs on where this host has not got it: nothing, cores in turn, or so many SMs of a whole GPU."""

DEFAULT_PORT = 8000
"""Triton's HTTP port, which its clients assume."""
LONGEST_QUEUE = 1000
"""Rows (requests of one item) of a model that wait at most; what comes then is refused (429)."""
DEADLINE_S = 30.0
"""How long a client waits that names no time of its own; then it is told so (504)."""

WARM_UP_RUNS = 3
"""Runs of a worker at its largest batch before it says that it is ready."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may ask of a server at most, before any of it is handled.

    `head_bytes` and `head_s` of a request's head, `body_s` of its body, `send_s` in which a client takes nothing of its
    answer, `idle_s` between requests. `connections` and `requests` at once; `body_bytes` of one body, packed or
    unpacked, `json_bytes` of the JSON in it, `held_bytes` of all bodies at once.
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
class Access:
    """Who may ask. `hosts`: the names a request may ask for, with "*" any; `token`: what it has to show, unless None.

    `certificate` and `key` are files in PEM: with them the server speaks TLS.
    """

    hosts: tuple[str, ...] = ("*",)
    token: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`port` 0 takes a free one. `queue_limit` counts rows that wait, by model; `drain_s` is how long requests that
    were taken may still need once the server is told to stop."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    queue_limit: int = LONGEST_QUEUE
    deadline_s: float = DEADLINE_S
    drain_s: float = 30.0
    stand_in: StandIn = "none"
    trust: bool = False
    limits: Limits = Limits()
    access: Access = Access()


def settings_from_dict(content: Mapping[str, Any]) -> ServeSettings:
    """The settings of what `asdict` has made of them, across JSON."""
    access = Access(**content["access"] | {"hosts": tuple(content["access"]["hosts"])})
    return ServeSettings(**{**content, "limits": Limits(**content["limits"]), "access": access})


DEFAULT_DURATION_S = 30.0


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """`load` times every rate, for `duration_s`; the same `seed` gives the same arrivals."""

    duration_s: float = DEFAULT_DURATION_S
    load: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ReadyServer:
    """A server that is ready: where it listens, and what it serves."""

    url: str
    models: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> str:
        """As one line of JSON, for who started the process."""
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
    """Raises InputFault for what is none; 0 takes a free one."""
    if not 0 <= port <= 65535:
        raise InputFault("--port", f"is {port}, outside 0 to 65535", f"Give, for example, {DEFAULT_PORT}.")
