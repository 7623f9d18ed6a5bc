"""A slow simulator that shares nothing with the product's: fractions, lists, and one instant after another.

It follows the rules word for word: at an instant ends of service, then arrivals, then starts, the first server
of the list that may start.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any


@dataclass
class _Server:
    data: dict[str, Any]
    queue: list[tuple[Fraction, int]]
    batch: list[int] = field(default_factory=list)
    end: Fraction | None = None
    began: int = -1


def _number(value: Any) -> Fraction:
    return Fraction(str(value))


def _time(table: dict[str, float], size: int) -> Fraction:
    known = sorted((int(key), _number(value)) for key, value in table.items())
    if size <= known[0][0]:
        return known[0][1]
    for (low, before), (high, behind) in pairwise(known):
        if low <= size <= high:
            return before + (behind - before) * (size - low) / (high - low)
    raise AssertionError("a batch beyond the table")


def responses(data: dict[str, Any]) -> dict[str, list[float]]:
    """Of a request as plain JSON with traces and deterministic service: by model the response times, ms."""
    return {model["name"]: _model(data, model) for model in data["models"]}


def _model(data: dict[str, Any], model: dict[str, Any]) -> list[float]:
    arrivals = [_number(time) * 1000 for time in model["arrivals"]["times_s"]]
    names = model["stages"]
    transfers = [_number(time) for time in model.get("transfer_ms", [])] or [Fraction(0)] * (len(names) - 1)
    stages: list[list[_Server]] = []
    for name in names:
        common: list[tuple[Fraction, int]] = []
        servers = []
        for server in data["servers"]:
            if (server["model"], server["stage"]) == (model["name"], name):
                for _ in range(server.get("count", 1)):
                    shared = data.get("queue", "shared") == "shared"
                    servers.append(_Server(server, common if shared else []))
        stages.append(servers)
    # What is on its way to a stage: (instant, number of the batch, place in the batch, request).
    coming: list[list[tuple[Fraction, int, int, int]]] = [[] for _ in names]
    coming[0] = [(time, 0, number, number) for number, time in enumerate(arrivals)]
    left: dict[int, Fraction] = {}
    batches = 0
    while len(left) < len(arrivals):
        now = _next(stages, coming)
        for depth, servers in enumerate(stages):
            for server in servers:
                if server.end is not None and server.end == now:
                    for place, request in enumerate(server.batch):
                        if depth + 1 == len(stages):
                            left[request] = now
                        else:
                            coming[depth + 1].append((now + transfers[depth], server.began, place, request))
                    server.batch, server.end = [], None
        for depth, servers in enumerate(stages):
            for item in sorted(one for one in coming[depth] if one[0] == now):
                coming[depth].remove(item)
                loads = [len(server.queue) + len(server.batch) for server in servers]
                # Under a shared queue it is the same list whichever server is taken.
                servers[loads.index(min(loads))].queue.append((now, item[3]))
        for servers in stages:
            while (able := _able(servers, now)) is not None:
                able.batch = [request for _, request in able.queue[: able.data["max_batch"]]]
                del able.queue[: able.data["max_batch"]]
                able.end = now + _time(able.data["batch_ms"], len(able.batch))
                able.began = batches
                batches += 1
    return [float(left[number] - time) for number, time in enumerate(arrivals)]


def _able(servers: list[_Server], now: Fraction) -> _Server | None:
    """The first free server with a full batch waiting, or whose oldest has waited long enough."""
    for server in servers:
        if server.end is None and server.queue:
            wait = _number(server.data.get("max_wait_ms", 0.0))
            if len(server.queue) >= server.data["max_batch"] or now - server.queue[0][0] >= wait:
                return server
    return None


def _next(stages: list[list[_Server]], coming: list[list[tuple[Fraction, int, int, int]]]) -> Fraction:
    """The next instant at which anything happens."""
    instants = [item[0] for one in coming for item in one]
    for servers in stages:
        for server in servers:
            if server.end is not None:
                instants.append(server.end)
            elif server.queue:
                instants.append(server.queue[0][0] + _number(server.data.get("max_wait_ms", 0.0)))
    return min(instants)
