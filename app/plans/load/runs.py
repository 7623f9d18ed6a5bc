"""Simulation runs, cached by content for each model: a quick run while a slider moves, then a full run."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from torchsplit_core.latency_slo.expected_response import REPLICATIONS, REQUESTS
from torchsplit_core.simulation import simulate_model
from torchsplit_core.simulation.max_load import Steps, search_max_load
from torchsplit_core.simulation.replication import prepare_model
from torchsplit_core.simulation.validate import PACED_RUNS, request_warnings, validate
from torchsplit_core.values import (
    HighestLoad,
    MaxLoadSearch,
    ModelLoad,
    ServerLoad,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
)

QUICK_REQUESTS, QUICK_REPLICATIONS = 20_000, 3
"""Requests of all models together in a replication of a quick run, which takes about a fifth of a second."""
FULL_REQUESTS, FULL_REPLICATIONS = REQUESTS, REPLICATIONS
"""Requests of each model in a full run, as for the verdict, so that both have the same figures."""
FIND_REQUESTS, FIND_REPLICATIONS = 80_000, 3
"""Requests of all models together in each trial for the highest load."""
LEAST_REQUESTS = 600
CACHED_RUNS = 512
"""Runs of one model in the cache of all sessions."""
POINTS = 120
"""Points of a drawn distribution."""
BEYOND = 10
"""Requests that are slower than the last drawn point."""


@dataclass(frozen=True, slots=True)
class ModelRun:
    """One model's run: its figures, those of its servers by id, and its distribution as percentages and ms."""

    load: ModelLoad
    servers: tuple[ServerLoad, ...]
    warnings: tuple[str, ...]
    percents: tuple[float, ...]
    times_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SimulationRuns:
    """The runs of all models of a request, how many of them are full, and warnings about the request."""

    models: tuple[ModelRun, ...]
    full: int
    remarks: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether no run is a quick one."""
        return self.full == len(self.models)


def quick(request: SimulationRequest) -> SimulationRequest:
    """The request with fewer requests and replications, and only the beginning of a long trace."""
    each = split_requests(QUICK_REQUESTS, len(request.models), 3000)
    models = tuple(_truncate(model, each * QUICK_REPLICATIONS) for model in request.models)
    return replace(request, models=models, requests_per_model=each, replications=QUICK_REPLICATIONS)


def full(request: SimulationRequest) -> SimulationRequest:
    """The request with the requests and replications of a full run."""
    return replace(request, requests_per_model=FULL_REQUESTS, replications=FULL_REPLICATIONS)


def full_replications(request: SimulationRequest) -> int:
    """Replications of each model in a full run; more where a server's speed is drawn."""
    return PACED_RUNS if any(server.pace for server in request.batch_servers) else FULL_REPLICATIONS


def split_requests(requests: int, models: int, most: int) -> int:
    """Requests for each of the models, from LEAST_REQUESTS to `most`."""
    return max(LEAST_REQUESTS, min(most, requests // max(models, 1)))


def _truncate(model: SimulatedModel, most: int) -> SimulatedModel:
    if isinstance(model.arrivals, TraceArrivals):
        return replace(model, arrivals=TraceArrivals(model.arrivals.times_s[:most]))
    return model


def load_runs(request: SimulationRequest) -> SimulationRuns:
    """The full run of each model if this session has made it, else a quick run. Raises InputFault for a bad request."""
    whole, fast = full(request), quick(request)
    validate(whole)
    done = st.session_state.setdefault("full runs", set())
    full_numbers = {number for number in range(len(request.models)) if run_key(whole, number) in done}
    model_runs = []
    for number in range(len(request.models)):
        simulated = whole if number in full_numbers else fast
        model_runs.append(_cached_run(run_key(simulated, number), simulated, number))
    warnings = tuple(dict.fromkeys(request_warnings(request)))
    return SimulationRuns(tuple(model_runs), len(full_numbers), warnings)


def run_next(request: SimulationRequest) -> bool:
    """Make the first full run that is missing; False if none is."""
    whole = full(request)
    done: set[str] = st.session_state.setdefault("full runs", set())
    for number in range(len(request.models)):
        key = run_key(whole, number)
        if key not in done:
            _cached_run(key, whole, number)
            done.add(key)
            return True
    return False


def run_key(request: SimulationRequest, number: int) -> str:
    """The hash of a model's run, including its place among the models, which decides its random draws."""
    model = request.models[number]
    servers = [server for server in request.servers if server.model == model.name]
    size = (request.requests_per_model, request.warmup_share, request.replications)
    how = (request.queue, *size, request.seed)
    return hashlib.sha256(repr((number, model, servers, how)).encode()).hexdigest()


@st.cache_resource(max_entries=CACHED_RUNS, show_spinner=False)
def _cached_run(key: str, _request: SimulationRequest, _number: int) -> ModelRun:
    """A model's run; `key` is its `run_key`."""
    run = simulate_model(_request, _number)
    percents, times_ms = distribution(run.response_ms)
    return ModelRun(run.load, tuple(run.servers.values()), run.warnings, percents, times_ms)


def distribution(samples: Sequence[NDArray[np.float64]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Percentages of the requests and the times within which so many are answered, ms, by nearest rank.

    The points are evenly spaced in the logarithm of the rest, up to where BEYOND requests remain.
    """
    if not samples:
        return (), ()
    ordered = np.sort(np.concatenate(samples))
    count = len(ordered)
    far = math.log10(max(count / BEYOND, 2.0))
    percents = [100 * (1 - 10 ** -(far * step / (POINTS - 1))) for step in range(POINTS)]
    ranks = [min(count, max(1, math.ceil(percent / 100 * count - 1e-9))) for percent in percents]
    return tuple(percents), tuple(float(ordered[rank - 1]) for rank in ranks)


@dataclass
class Finding:
    """A search for the highest load that advances a little with every run of the page."""

    steps: Steps
    share: float = 0.0
    text: str = ""
    result: HighestLoad | None = None

    def advance(self, seconds: float) -> None:
        """Search for about so long, at least by the simulation of one model."""
        until = time.perf_counter() + seconds
        while self.result is None:
            try:
                self.share, self.text = next(self.steps)
            except StopIteration as ended:
                self.result = ended.value
            if time.perf_counter() >= until:
                return


def max_load_search(request: SimulationRequest, percentile: float) -> Finding:
    """This session's search for the highest load of this request. Raises InputFault where no model has a limit."""
    searches: dict[str, Finding] = st.session_state.setdefault("load searches", {})
    key = search_key(request, percentile)
    if key not in searches:
        question = max_load_request(request, percentile)
        validate(question)
        prepared = [prepare_model(question, number) for number in range(len(question.models))]
        searches[key] = Finding(search_max_load(question, prepared))
    return searches[key]


def cancel_search(request: SimulationRequest, percentile: float) -> None:
    """End a search."""
    st.session_state.get("load searches", {}).pop(search_key(request, percentile), None)


def max_load_request(request: SimulationRequest, percentile: float) -> SimulationRequest:
    """The request that asks for the highest load."""
    each, find = split_requests(FIND_REQUESTS, len(request.models), 10_000), MaxLoadSearch(percentile)
    return replace(request, requests_per_model=each, replications=FIND_REPLICATIONS, find=find)


def search_key(request: SimulationRequest, percentile: float) -> str:
    """The hash of a search for the highest load."""
    question = max_load_request(request, percentile)
    parts = [run_key(question, number) for number in range(len(question.models))]
    return hashlib.sha256(repr((percentile, parts)).encode()).hexdigest()
