"""What a simulation request must be beyond its format: who serves whom, and how much it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from torchsplit_core.simulation.arrivals import count_of, offered_rps
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
)
from torchsplit_core.values.limits import check_name, check_number, check_whole
from torchsplit_core.values.simulation.request import Arrivals

MOST_SERVERS = 1_000_000
"""Of all entries together, each by its count."""
MOST_ENTRIES = 10_000
MOST_KINDS = 200
"""Different pairs of max_batch and max_wait_ms in one stage: every start looks at each of them."""
MOST_REQUESTS = 10_000_000
"""Of one model in one replication."""
MOST_RUN = 100_000_000
"""Requests through stages, all models and replications together: some minutes."""
MOST_REPLICATIONS = 10_000
LONGEST_S = 1e9
"""Of one replication, about thirty years: beyond it a double of milliseconds has no microseconds."""
MOST_STAYS = 20_000_000
"""Of an mmpp in one replication."""
SPREADS = (1e-3, 100.0)
"""Standard deviation over mean that gamma and lognormal take."""


def validate(request: SimulationRequest) -> None:
    """Raises InputFault for the first thing with which the request makes no sense."""
    check_whole("requests_per_model", request.requests_per_model, least=1, most=MOST_REQUESTS)
    check_whole("replications", request.replications, least=1, most=MOST_REPLICATIONS)
    check_whole("seed", request.seed)
    share = request.warmup_share
    check_number("warmup_share", share)
    if share >= 1:
        raise InputFault("warmup_share", share, "it is below 1", "Leave some requests to count.")
    if not request.models:
        raise InputFault("models", "none", "there is a model", "Add a model.")
    _unique("models", [model.name for model in request.models])
    _unique("servers", [server.id for server in request.servers])
    for model in request.models:
        _check_model(model, request.requests_per_model)
    _check_servers(request)
    _check_amount(request)
    if request.find is not None:
        _check_find(request)


def _unique(where: str, names: list[str]) -> None:
    seen = set()
    for name in names:
        check_name(where, name)
        if name in seen:
            raise InputFault(where, name, "a name stands for one of them", "Rename one.")
        seen.add(name)


def _check_model(model: SimulatedModel, requests: int) -> None:
    where = f"models.{model.name}"
    if not model.stages:
        raise InputFault(
            f"{where}.stages", "none", "a model has a stage", "Name its stage, whole for example."
        )
    _unique(f"{where}.stages", list(model.stages))
    cuts = len(model.stages) - 1
    for field in ("transfer_ms", "cut_bytes", "cut_bytes_per_request"):
        figures = getattr(model, field)
        if figures and len(figures) != cuts:
            raise InputFault(
                f"{where}.{field}",
                f"{len(figures)} entries",
                f"it has one for each of the {cuts} way(s) from a stage to the next, or none",
                "Give each, or leave it out.",
            )
        for figure in figures:
            check_number(f"{where}.{field}", figure)
    if model.slo_ms is not None:
        check_number(f"{where}.slo_ms", model.slo_ms, positive=True)
    check_arrivals(f"{where}.arrivals", model.arrivals, requests)


def check_arrivals(where: str, arrivals: Arrivals, requests: int) -> None:
    """Raises InputFault for arrivals that make no sense, or take too long for so many requests."""
    if isinstance(arrivals, TraceArrivals):
        _check_trace(where, arrivals.times_s)
        return
    if isinstance(arrivals, PoissonArrivals | DeterministicArrivals | GammaArrivals):
        check_number(f"{where}.rate_rps", arrivals.rate_rps, positive=True)
    if isinstance(arrivals, GammaArrivals):
        _check_spread(f"{where}.cv", arrivals.cv)
    if isinstance(arrivals, MmppArrivals):
        for state in arrivals.states:
            check_number(f"{where}.states.rate_rps", state.rate_rps)
            check_number(f"{where}.states.mean_s", state.mean_s, positive=True)
        if not any(state.rate_rps > 0 for state in arrivals.states):
            raise InputFault(
                f"{where}.states", "no rate above 0", "requests arrive in a state", "Give a rate."
            )
    length = requests / (offered_rps(arrivals) or 0.0)
    if length > LONGEST_S:
        raise InputFault(
            where,
            f"{requests} requests in {length:.3g} s",
            f"a replication is at most {LONGEST_S:g} s long",
            "Give a higher rate, or fewer requests_per_model.",
        )
    if isinstance(arrivals, MmppArrivals):
        stays = length / sum(state.mean_s for state in arrivals.states) * len(arrivals.states)
        if stays > MOST_STAYS:
            raise InputFault(
                f"{where}.states",
                f"{stays:.3g} stays in a replication",
                f"a replication has at most {MOST_STAYS} stays",
                "Give longer stays: at such short ones arrivals are Poisson at the mean rate.",
            )


def _check_trace(where: str, times: tuple[float, ...]) -> None:
    where = f"{where}.times_s"
    if not times:
        raise InputFault(where, "none", "a trace has an arrival", "Give the times of the requests.")
    if len(times) > MOST_REQUESTS:
        raise InputFault(
            where,
            f"{len(times)} times",
            f"a trace has at most {MOST_REQUESTS} arrivals",
            "Give a part of it.",
        )
    known = np.asarray(times, dtype=np.float64)
    if known[0] >= 0 and np.isfinite(known[-1]) and np.all(known[1:] >= known[:-1]):
        _check_length(where, times)
        return
    before = 0.0
    for number, time in enumerate(times):
        check_number(f"{where}.{number}", time, signed=True)
        if time < before:
            rule = "times never fall" if number else "times begin at 0 or later"
            raise InputFault(f"{where}.{number}", time, f"{rule} (before it: {before:g})", "Sort the trace.")
        before = time


def _check_length(where: str, times: tuple[float, ...]) -> None:
    check_number(where, times[-1])
    if times[-1] - times[0] > LONGEST_S:
        rule = f"a trace is at most {LONGEST_S:g} s long"
        raise InputFault(where, times[-1], rule, "Check the unit: times are seconds.")


def _check_spread(where: str, cv: float | None) -> None:
    low, high = SPREADS
    check_number(where, cv, positive=True)
    if cv is None or not low <= cv <= high:
        raise InputFault(where, cv, f"it is from {low:g} to {high:g}", "Give such a spread.")


def _check_servers(request: SimulationRequest) -> None:
    if len(request.servers) > MOST_ENTRIES:
        raise InputFault(
            "servers",
            f"{len(request.servers)} entries",
            f"there are at most {MOST_ENTRIES} entries",
            "Write equal servers as one with a count.",
        )
    stages = {(model.name, stage) for model in request.models for stage in model.stages}
    names = {model.name for model in request.models}
    for server in request.servers:
        _check_server(server)
        if server.model not in names:
            raise InputFault(f"servers.{server.id}.model", server.model, "it is a model's name", "Check it.")
        if (server.model, server.stage) not in stages:
            rule = f"it is a stage of {server.model}"
            raise InputFault(f"servers.{server.id}.stage", server.stage, rule, "Check it.")
    total = sum(server.count for server in request.servers)
    if total > MOST_SERVERS:
        raise InputFault(
            "servers", f"{total} servers", f"there are at most {MOST_SERVERS} servers in all", "Give fewer."
        )
    served = by_stage(request)
    for model, stage in sorted(stages - set(served)):
        raise InputFault(f"models.{model}.stages", stage, "a stage has a server", "Add a server for it.")
    for (model, stage), servers in served.items():
        kinds = {(server.max_batch, server.max_wait_ms) for server in servers}
        if len(kinds) > MOST_KINDS:
            rule = f"a stage has at most {MOST_KINDS} different pairs of max_batch and max_wait_ms"
            raise InputFault(f"models.{model}.stages", f"{stage}: {len(kinds)}", rule, "Make some equal.")


def by_stage(request: SimulationRequest) -> dict[tuple[str, str], list[Server]]:
    """The servers of each (model, stage) in the list's order."""
    found: dict[tuple[str, str], list[Server]] = {}
    for server in request.servers:
        found.setdefault((server.model, server.stage), []).append(server)
    return found


def _check_server(server: Server) -> None:
    where = f"servers.{server.id}"
    check_whole(f"{where}.count", server.count, least=1)
    check_whole(f"{where}.max_batch", server.max_batch, least=1)
    check_number(f"{where}.max_wait_ms", server.max_wait_ms)
    _check_service(where, server.service)
    if not server.batch_ms:
        raise InputFault(f"{where}.batch_ms", "no size", "it has the time of a batch size", "Add one.")
    for size, time in server.batch_ms.items():
        check_whole(f"{where}.batch_ms", size, least=1)
        check_number(f"{where}.batch_ms.{size}", time, positive=True)
    if server.max_batch > max(server.batch_ms):
        raise InputFault(
            f"{where}.max_batch",
            server.max_batch,
            f"it is at most the largest size of batch_ms, {max(server.batch_ms)}",
            "Add the time of that batch, or make it smaller.",
        )


def _check_service(where: str, service: Service) -> None:
    if service.kind == "lognormal":
        _check_spread(f"{where}.service.cv", service.cv)
    elif service.cv is not None:
        rule = f"only lognormal service has a cv, {service.kind} none"
        raise InputFault(f"{where}.service.cv", service.cv, rule, "Leave it out.")


def _check_amount(request: SimulationRequest) -> None:
    amount = sum(
        count_of(model.arrivals, request.requests_per_model)
        * len(model.stages)
        * (1 if isinstance(model.arrivals, TraceArrivals) else request.replications)
        for model in request.models
    )
    if amount > MOST_RUN:
        raise InputFault(
            "requests_per_model",
            f"{amount} requests through stages, all models and replications together",
            f"they are at most {MOST_RUN}",
            "Simulate fewer requests, replications or models at a time.",
        )


def _check_find(request: SimulationRequest) -> None:
    assert request.find is not None
    percentile = request.find.percentile
    check_number("find.percentile", percentile, positive=True)
    if percentile >= 100:
        rule = "it is below 100: the largest response grows with the number of requests"
        raise InputFault("find.percentile", percentile, rule, "Ask for 99 or 99.9.")
    if all(model.slo_ms is None for model in request.models):
        rule = "with find a model has a slo_ms"
        raise InputFault("find", "no model has a slo_ms", rule, "Give the limit in ms.")
    served = by_stage(request)
    for model in request.models:
        least = least_response_ms(served, model)
        if model.slo_ms is not None and least is not None and model.slo_ms < least:
            raise InputFault(
                f"models.{model.name}.slo_ms",
                model.slo_ms,
                f"no request is answered in less than {least:g} ms, so no load keeps it",
                "Raise the limit.",
            )


def least_response_ms(
    served: Mapping[tuple[str, str], Sequence[Server]], model: SimulatedModel
) -> float | None:
    """Milliseconds in which no request is answered: the fastest batches and the transfers. None: times are drawn."""
    least = sum(model.transfer_ms)
    for stage in model.stages:
        servers = served[model.name, stage]
        if any(server.service.kind != "deterministic" for server in servers):
            return None
        least += min(_fastest(server) for server in servers)
    return least


def _fastest(server: Server) -> float:
    """The least time of a batch that the server may take: at a size of the table, or at max_batch."""
    sizes = [size for size in server.batch_ms if size <= server.max_batch]
    return min(
        [*(server.batch_ms[size] for size in sizes), float(batch_time(server.batch_ms, server.max_batch))]
    )


def remarks(request: SimulationRequest) -> Iterator[str]:
    """What is no fault, but is to be said."""
    for server in request.servers:
        sizes = sorted(server.batch_ms)
        for small, large in pairwise(sizes):
            if server.batch_ms[large] < server.batch_ms[small]:
                yield (
                    f"{server.id}: a batch of {large} takes less time than one of {small}; the times are used as given"
                )
                break
    holes = [server.id for server in request.servers if _has_holes(server)]
    if holes:
        named = f"{holes[0]} and {len(holes) - 1} more" if len(holes) > 1 else holes[0]
        yield (
            f"{named}: not every batch size has its time; between sizes given times are linear, below the smallest "
            "they are its"
        )
    served = by_stage(request)
    for model in request.models:
        least = least_response_ms(served, model)
        if model.slo_ms is not None and least is not None and model.slo_ms < least:
            yield f"{model.name}: no request is answered in less than {least:g} ms, so none meets its slo_ms"
        if isinstance(model.arrivals, TraceArrivals) and offered_rps(model.arrivals) is None:
            yield f"{model.name}: all its arrivals are at one time, so they have no rate"


def _has_holes(server: Server) -> bool:
    """Whether a batch that the server may take is not in its table."""
    return sum(size <= server.max_batch for size in server.batch_ms) < server.max_batch
