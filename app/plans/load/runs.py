"""Runs of a simulation, model by model and kept by content: a quick one while a slider moves, then a full one."""

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
"""Of all models together in a replication of a quick run: about a fifth of a second."""
FULL_REQUESTS, FULL_REPLICATIONS = REQUESTS, REPLICATIONS
"""Of each model in a full run: those of the verdict, so that both tell the same figures."""
FIND_REQUESTS, FIND_REPLICATIONS = 80_000, 3
"""Of all models together in each try for the highest load."""
LEAST_REQUESTS = 600
CACHED_RUNS = 512
"""Runs of one model that are kept, of all sessions."""
POINTS = 120
"""Of a drawn distribution."""
BEYOND = 10
"""So many requests are slower than the last point that is drawn."""


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
    """The runs of all models of a request, how many of them are full, and what is to be said of the request."""

    models: tuple[ModelRun, ...]
    full: int
    remarks: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether no run is a quick one."""
        return self.full == len(self.models)


def quick(request: SimulationRequest) -> SimulationRequest:
    """Fewer requests and replications; of a long trace only its beginning."""
    each = split_requests(QUICK_REQUESTS, len(request.models), 3000)
    models = tuple(_truncate(model, each * QUICK_REPLICATIONS) for model in request.models)
    return replace(request, models=models, requests_per_model=each, replications=QUICK_REPLICATIONS)


def full(request: SimulationRequest) -> SimulationRequest:
    """As many requests as figures that are read need."""
    return replace(request, requests_per_model=FULL_REQUESTS, replications=FULL_REPLICATIONS)


def full_replications(request: SimulationRequest) -> int:
    """Of each model in a full run; more where a server's speed is drawn."""
    return PACED_RUNS if any(server.pace for server in request.servers) else FULL_REPLICATIONS


def split_requests(requests: int, models: int, most: int) -> int:
    """So many requests for each of the models, within what makes sense."""
    return max(LEAST_REQUESTS, min(most, requests // max(models, 1)))


def _truncate(model: SimulatedModel, most: int) -> SimulatedModel:
    if not isinstance(model.arrivals, TraceArrivals):
        return model
    return replace(model, arrivals=TraceArrivals(model.arrivals.times_s[:most]))


def load_runs(request: SimulationRequest) -> SimulationRuns:
    """Of every model its full run where it is kept, else a quick one. Raises InputFault for what makes no sense."""
    whole, fast = full(request), quick(request)
    validate(whole)
    done = st.session_state.setdefault("full runs", set())
    model_runs, count = [], 0
    for number in range(len(request.models)):
        key = run_key(whole, number)
        if key in done:
            model_runs.append(_cached_run(key, whole, number))
            count += 1
        else:
            model_runs.append(_cached_run(run_key(fast, number), fast, number))
    return SimulationRuns(tuple(model_runs), count, tuple(dict.fromkeys(request_warnings(request))))


def run_next(request: SimulationRequest) -> bool:
    """Run the first model in full that is not yet; False where every one is."""
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
    """The content of a model's run: its place among the models too, which decides its draws."""
    model = request.models[number]
    servers = [server for server in request.servers if server.model == model.name]
    how = (
        request.queue,
        request.requests_per_model,
        request.warmup_share,
        request.replications,
        request.seed,
    )
    return hashlib.sha256(repr((number, model, servers, how)).encode()).hexdigest()


@st.cache_resource(max_entries=CACHED_RUNS, show_spinner=False)
def _cached_run(key: str, _request: SimulationRequest, _number: int) -> ModelRun:
    """A model's run; `key` is its content."""
    run = simulate_model(_request, _number)
    percents, times_ms = distribution(run.response_ms)
    return ModelRun(run.load, tuple(run.servers.values()), run.warnings, percents, times_ms)


def distribution(samples: Sequence[NDArray[np.float64]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Percentages and the times that so many of all requests do not pass, ms: the nearest rank.

    Evenly spaced in the power of ten of what is left, up to where few requests are left to tell of.
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
    """A search for the highest load that goes on a little with every run of the page, until it has found."""

    steps: Steps
    share: float = 0.0
    text: str = ""
    result: HighestLoad | None = None

    def advance(self, seconds: float) -> None:
        """For about so long, at least by the simulation of one model."""
        until = time.perf_counter() + seconds
        while self.result is None:
            try:
                self.share, self.text = next(self.steps)
            except StopIteration as ended:
                self.result = ended.value
            if time.perf_counter() >= until:
                return


def max_load_search(request: SimulationRequest, percentile: float) -> Finding:
    """The search for this content, this session's. Raises InputFault where no model has a limit."""
    searches: dict[str, Finding] = st.session_state.setdefault("load searches", {})
    key = search_key(request, percentile)
    if key not in searches:
        question = max_load_request(request, percentile)
        validate(question)
        prepared = [prepare_model(question, number) for number in range(len(question.models))]
        searches[key] = Finding(search_max_load(question, prepared))
    return searches[key]


def cancel_search(request: SimulationRequest, percentile: float) -> None:
    """End a search that has not found yet."""
    st.session_state.get("load searches", {}).pop(search_key(request, percentile), None)


def max_load_request(request: SimulationRequest, percentile: float) -> SimulationRequest:
    """The request with the question for the highest load."""
    each = split_requests(FIND_REQUESTS, len(request.models), 10_000)
    return replace(
        request, requests_per_model=each, replications=FIND_REPLICATIONS, find=MaxLoadSearch(percentile)
    )


def search_key(request: SimulationRequest, percentile: float) -> str:
    """The content of a question for the highest load."""
    question = max_load_request(request, percentile)
    parts = [run_key(question, number) for number in range(len(question.models))]
    return hashlib.sha256(repr((percentile, parts)).encode()).hexdigest()
