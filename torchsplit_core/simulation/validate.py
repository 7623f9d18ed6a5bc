"""Checks a simulation request beyond its format: which server serves which stage, and how much work it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from torchsplit_core.simulation.arrivals import offered_rps, request_count
from torchsplit_core.simulation.station import batch_time
from torchsplit_core.values import (
    DeterministicArrivals,
    GammaArrivals,
    InputFault,
    MmppArrivals,
    PoissonArrivals,
    Server,
    Service,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
    quoted,
    suggestion,
)
from torchsplit_core.values.limits import check_name, check_number, check_whole
from torchsplit_core.values.simulation.request import Arrivals

MOST_SERVERS = 1_000_000
"""Servers of all entries together, counting `count`."""
MOST_ENTRIES = 10_000
MOST_KINDS = 200
"""Different pairs of max_batch and max_wait_ms in one stage: every start of a batch checks each of them."""
MOST_REQUESTS = 10_000_000
"""Requests of one model in one replication."""
MOST_RUN = 100_000_000
"""Requests times stages, over all models and replications: some minutes of computing."""
MOST_REPLICATIONS = 10_000
PACED_RUNS = 40
"""Fewest replications if a server's speed is drawn: 90 % of them lie between the second and third from either
end."""
LONGEST_S = 1e9
"""Seconds of one replication, about thirty years: beyond it a double of milliseconds cannot hold microseconds."""
MOST_STAYS = 20_000_000
"""Stays of an mmpp in one replication."""
CV_RANGE = (1e-3, 100.0)
"""Allowed coefficient of variation (standard deviation over mean) of gamma and lognormal."""


def validate(request: SimulationRequest) -> None:
    """Raises InputFault for the first rule that the request breaks."""
    check_whole("requests_per_model", request.requests_per_model, least=1, most=MOST_REQUESTS)
    check_whole("replications", request.replications, least=1, most=MOST_REPLICATIONS)
    check_whole("seed", request.seed)
    share = request.warmup_share
    check_number("warmup_share", share)
    if share >= 1:
        raise InputFault(
            "warmup_share", f"is {share:g}, which leaves no request to count", "Give less than 1."
        )
    if not request.models:
        raise InputFault("models", "is empty", "Add a model.")
    _check_unique("models", [model.name for model in request.models])
    _check_unique("servers", [server.id for server in request.servers])
    for model in request.models:
        _check_model(model, request.requests_per_model)
    _check_servers(request)
    _check_amount(request)
    _check_frontend(request)
    if request.find is not None:
        _check_find(request)


def _check_unique(where: str, names: list[str]) -> None:
    seen = set()
    for name in names:
        check_name(where, name)
        if name in seen:
            raise InputFault(where, f"has the name {quoted(name)} twice", "Rename one of them.")
        seen.add(name)


def _check_model(model: SimulatedModel, requests: int) -> None:
    where = f"models.{model.name}"
    if not model.stages:
        raise InputFault(
            f"{where}.stages", "is empty", "Name the model's stages; one stage may be called whole."
        )
    _check_unique(f"{where}.stages", list(model.stages))
    cuts = len(model.stages) - 1
    for field in ("transfer_ms", "cut_bytes", "cut_bytes_per_request"):
        figures = getattr(model, field)
        if figures and len(figures) != cuts:
            raise InputFault(
                f"{where}.{field}",
                f"has {len(figures)} {'entry' if len(figures) == 1 else 'entries'} for {cuts} "
                f"cut{'s' * (cuts != 1)} between stages",
                "Give one entry a cut, or leave the field out.",
            )
        for figure in figures:
            check_number(f"{where}.{field}", figure)
    check_number(f"{where}.front_ms", model.front_ms)
    if model.slo_ms is not None:
        check_number(f"{where}.slo_ms", model.slo_ms, positive=True)
    check_arrivals(f"{where}.arrivals", model.arrivals, requests)


def check_arrivals(where: str, arrivals: Arrivals, requests: int) -> None:
    """Raises InputFault for invalid arrivals, or for arrivals that take too long for so many requests."""
    if isinstance(arrivals, TraceArrivals):
        _check_trace(where, arrivals.times_s)
        return
    if isinstance(arrivals, PoissonArrivals | DeterministicArrivals | GammaArrivals):
        check_number(f"{where}.rate_rps", arrivals.rate_rps, positive=True)
    if isinstance(arrivals, GammaArrivals):
        _check_cv(f"{where}.cv", arrivals.cv)
    if isinstance(arrivals, MmppArrivals):
        for state in arrivals.states:
            check_number(f"{where}.states.rate_rps", state.rate_rps)
            check_number(f"{where}.states.mean_s", state.mean_s, positive=True)
        if not any(state.rate_rps > 0 for state in arrivals.states):
            raise InputFault(
                f"{where}.states", "has no rate above 0, so no request arrives", "Give a state a rate."
            )
    length = requests / (offered_rps(arrivals) or 0.0)
    if length > LONGEST_S:
        raise InputFault(
            where,
            f"spreads {requests} requests over {length:.3g} s, more than {LONGEST_S:g} s",
            "Give a higher rate, or fewer requests_per_model.",
        )
    if isinstance(arrivals, MmppArrivals):
        stays = length / sum(state.mean_s for state in arrivals.states) * len(arrivals.states)
        if stays > MOST_STAYS:
            raise InputFault(
                f"{where}.states",
                f"makes {stays:.3g} stays in a replication, more than {MOST_STAYS}",
                "Give longer stays, or Poisson arrivals at the mean rate, which is what such short ones amount to.",
            )


def _check_trace(where: str, times: tuple[float, ...]) -> None:
    where = f"{where}.times_s"
    if not times:
        raise InputFault(where, "is empty", "Give the times of the requests.")
    if len(times) > MOST_REQUESTS:
        raise InputFault(
            where,
            f"has {len(times)} arrivals, more than {MOST_REQUESTS}",
            "Give a part of the trace.",
        )
    known = np.asarray(times, dtype=np.float64)
    if known[0] >= 0 and np.isfinite(known[-1]) and np.all(known[1:] >= known[:-1]):
        _check_length(where, times)
        return
    before = 0.0
    for number, time in enumerate(times):
        check_number(f"{where}[{number}]", time, signed=True)
        if time < before:
            if not number:
                raise InputFault(f"{where}[0]", f"is {time}, below 0", "Count from the first arrival.")
            raise InputFault(
                f"{where}[{number}]", f"is {time}, less than the {before} before it", "Sort the trace."
            )
        before = time


def _check_length(where: str, times: tuple[float, ...]) -> None:
    check_number(where, times[-1])
    if times[-1] - times[0] > LONGEST_S:
        problem = f"is {times[-1] - times[0]:g} s long, more than {LONGEST_S:g} s"
        raise InputFault(where, problem, "Check the unit: times are in seconds.")


def _check_cv(where: str, cv: float | None) -> None:
    low, high = CV_RANGE
    if cv is None:
        raise InputFault(where, "is missing", f"Give a spread from {low:g} to {high:g}.")
    check_number(where, cv, positive=True)
    if not low <= cv <= high:
        beyond = f"below the least value {low:g}" if cv < low else f"above the greatest value {high:g}"
        raise InputFault(where, f"is {cv}, {beyond}", f"Give a spread from {low:g} to {high:g}.")


def _check_servers(request: SimulationRequest) -> None:
    if len(request.servers) > MOST_ENTRIES:
        raise InputFault(
            "servers",
            f"has {len(request.servers)} entries, more than {MOST_ENTRIES}",
            "Write equal servers as one with a count.",
        )
    stages = {(model.name, stage) for model in request.models for stage in model.stages}
    names = {model.name for model in request.models}
    for server in request.servers:
        if isinstance(server, Server):
            _check_server(server)
        if server.model not in names:
            raise InputFault(
                f"servers.{server.id}.model",
                f"is {quoted(server.model)}, not a model of the request",
                suggestion(server.model, names, "models"),
            )
        if (server.model, server.stage) not in stages:
            raise InputFault(
                f"servers.{server.id}.stage",
                f"is {quoted(server.stage)}, not a stage of {server.model}",
                suggestion(
                    server.stage, sorted(stage for name, stage in stages if name == server.model), "stages"
                ),
            )
    total = sum(server.count for server in request.servers)
    if total > MOST_SERVERS:
        raise InputFault(
            "servers", f"counts {total} servers in all, more than {MOST_SERVERS}", "Give fewer servers."
        )
    served = servers_by_stage(request)
    for model, stage in sorted(stages - set(served)):
        raise InputFault(
            f"models.{model}.stages", f"has no server for {quoted(stage)}", "Add a server for it."
        )
    for (model, stage), servers in served.items():
        kinds = {(server.max_batch, server.max_wait_ms) for server in servers}
        if len(kinds) > MOST_KINDS:
            raise InputFault(
                f"models.{model}.stages",
                f"has {len(kinds)} different pairs of max_batch and max_wait_ms for {stage}, more than {MOST_KINDS}",
                "Make some of them equal.",
            )


def servers_by_stage(request: SimulationRequest) -> dict[tuple[str, str], list[Server]]:
    """The servers of each (model, stage), in the order of the list."""
    servers: dict[tuple[str, str], list[Server]] = {}
    for server in request.batch_servers:
        servers.setdefault((server.model, server.stage), []).append(server)
    return servers


def _check_server(server: Server) -> None:
    where = f"servers.{server.id}"
    check_whole(f"{where}.count", server.count, least=1)
    check_whole(f"{where}.max_batch", server.max_batch, least=1)
    check_number(f"{where}.max_wait_ms", server.max_wait_ms)
    _check_service(where, server.service)
    if server.pace is not None:
        check_number(f"{where}.pace.seconds", server.pace.seconds, positive=True)
        for name in ("cv", "drift_cv"):
            _check_pace(f"{where}.pace.{name}", getattr(server.pace, name))
    if not server.batch_ms:
        raise InputFault(f"{where}.batch_ms", "is empty", "Add the time of a batch size.")
    for size, time in server.batch_ms.items():
        check_whole(f"{where}.batch_ms", size, least=1)
        check_number(f"{where}.batch_ms.{size}", time, positive=True)
    if server.max_batch > max(server.batch_ms):
        raise InputFault(
            f"{where}.max_batch",
            f"is {server.max_batch}, above the largest size of batch_ms, {max(server.batch_ms)}",
            "Add the time of that batch, or lower max_batch.",
        )


def _check_pace(where: str, cv: float) -> None:
    check_number(where, cv)
    if cv > CV_RANGE[1]:
        problem = f"is {cv}, above the greatest value {CV_RANGE[1]:g}"
        raise InputFault(where, problem, f"Give a spread from 0 to {CV_RANGE[1]:g}.")


def _check_service(where: str, service: Service) -> None:
    if service.kind == "lognormal":
        _check_cv(f"{where}.service.cv", service.cv)
    elif service.cv is not None:
        raise InputFault(
            f"{where}.service.cv", f"is {service.cv}, but {service.kind} service has no cv", "Leave it out."
        )


def _check_amount(request: SimulationRequest) -> None:
    paced = {server.model for server in request.batch_servers if server.pace is not None}
    amount = sum(
        request_count(model.arrivals, request.requests_per_model)
        * len(model.stages)
        * max(
            1 if isinstance(model.arrivals, TraceArrivals) else request.replications,
            PACED_RUNS if model.name in paced else 1,
        )
        for model in request.models
    )
    if amount > MOST_RUN:
        raise InputFault(
            "requests_per_model",
            f"makes {amount} requests through stages, all models and replications together, more than {MOST_RUN}",
            "Simulate fewer requests, replications or models at a time.",
        )


def _check_frontend(request: SimulationRequest) -> None:
    """Raises InputFault if too many requests pass the front during a trace, since every one of them is simulated."""
    passing = [model.arrivals for model in request.models if model.front_ms]
    passed_rps = sum(offered_rps(arrivals) or 0.0 for arrivals in passing)
    for model in request.models:
        if not model.front_ms or not isinstance(model.arrivals, TraceArrivals):
            continue
        length_s = model.arrivals.times_s[-1] - model.arrivals.times_s[0]
        if passed_rps * length_s > MOST_REQUESTS:
            raise InputFault(
                f"models.{model.name}.arrivals",
                f"last {length_s:g} s, in which {passed_rps * length_s:.3g} requests of all models pass the front, "
                f"more than {MOST_REQUESTS}",
                "Give a part of the trace, or leave front_ms out.",
            )


def _check_find(request: SimulationRequest) -> None:
    assert request.find is not None
    percentile = request.find.percentile
    check_number("find.percentile", percentile, positive=True)
    if percentile >= 100:
        problem = f"is {percentile:g}, and the largest response grows with the number of requests"
        raise InputFault("find.percentile", problem, "Ask for 99 or 99.9.")
    if all(model.slo_ms is None for model in request.models):
        raise InputFault("find", "has no limit to keep: no model has a slo_ms", "Give a model its slo_ms.")
    served = servers_by_stage(request)
    for model in request.models:
        least = min_response_ms(served, model)
        if model.slo_ms is not None and least is not None and model.slo_ms < least:
            raise InputFault(
                f"models.{model.name}.slo_ms",
                f"is {model.slo_ms:g}, and no request is answered in less than {least:g} ms at any load",
                "Raise the limit.",
            )


def min_response_ms(
    served: Mapping[tuple[str, str], Sequence[Server]], model: SimulatedModel
) -> float | None:
    """A lower bound of the response time, ms: the fastest batches plus transfers. None if service times are drawn."""
    least = sum(model.transfer_ms) + model.front_ms
    for stage in model.stages:
        servers = served[model.name, stage]
        if any(server.service.kind != "deterministic" for server in servers):
            return None
        least += min(_fastest(server) for server in servers)
    return least


def _fastest(server: Server) -> float:
    """The shortest batch time, ms, over the sizes of the table up to max_batch and max_batch itself."""
    sizes = [size for size in server.batch_ms if size <= server.max_batch]
    return min(
        [*(server.batch_ms[size] for size in sizes), float(batch_time(server.batch_ms, server.max_batch))]
    )


def request_warnings(request: SimulationRequest) -> Iterator[str]:
    """What is valid but worth a warning."""
    for server in request.batch_servers:
        sizes = sorted(server.batch_ms)
        for small, large in pairwise(sizes):
            if server.batch_ms[large] < server.batch_ms[small]:
                yield (
                    f"{server.id}: a batch of {large} takes less time than one of {small}. Check the two times; they "
                    "are used as given."
                )
                break
    holes = [server.id for server in request.batch_servers if _has_holes(server)]
    if holes:
        named = f"{holes[0]} and {len(holes) - 1} more" if len(holes) > 1 else holes[0]
        yield (
            f"{named}: some batch sizes have no time of their own. Between two given sizes it is interpolated, below "
            "the smallest it is that of the smallest."
        )
    served = servers_by_stage(request)
    for model in request.models:
        least = min_response_ms(served, model)
        if model.slo_ms is not None and least is not None and model.slo_ms < least:
            yield (
                f"{model.name}: no request is answered in less than {least:g} ms, so none meets the slo_ms of "
                f"{model.slo_ms:g}."
            )
        if isinstance(model.arrivals, TraceArrivals) and offered_rps(model.arrivals) is None:
            yield f"{model.name}: all arrivals are at one time, so they have no rate."


def _has_holes(server: Server) -> bool:
    """Whether the table lacks a batch size up to max_batch."""
    return sum(size <= server.max_batch for size in server.batch_ms) < server.max_batch
