"""Replications of a model with engines: arrivals, lengths and the engines' run, as figures of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.arrivals import arrival_times_ms, is_random, request_count
from torchsplit_core.simulation.continuous.engines import EngineRun, run_engines
from torchsplit_core.simulation.continuous.request_tokens import RequestTokens, are_drawn, request_tokens
from torchsplit_core.simulation.frontend import (
    FrontendTraffic,
    frontend_capacity_rps,
    frontend_departures_ms,
    frontend_traffic,
    limit_requests,
)
from torchsplit_core.simulation.output_statistics import mean, warmup_count
from torchsplit_core.values import (
    DeterministicArrivals,
    EngineServer,
    InputFault,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
)

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EngineReplication:
    """One replication: arrivals in seconds, the lengths, and what the engines made of them.

    The requests before `first_counted` are the warm-up. Figures per request are in milliseconds. `passed_ms` is from
    arrival to joining the engines, of which the front works `front_ms` on the request.
    """

    arrivals_s: Times
    passed_ms: Times
    tokens: RequestTokens
    run: EngineRun
    first_counted: int
    front_ms: float

    @property
    def length_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.run.last_token_s.max() - self.arrivals_s[0])

    @property
    def ttft_ms(self) -> Times:
        """From arrival to the first token."""
        return self._counted(self.run.ttft_ms + self.passed_ms)

    @property
    def response_ms(self) -> Times:
        """From arrival to the last token."""
        return self._counted(self.run.response_ms + self.passed_ms)

    @property
    def wait_ms(self) -> Times:
        """From arrival to the first step, without the time in which the front works on the request."""
        return np.maximum(self._counted(self.run.wait_ms + self.passed_ms - self.front_ms), 0.0)

    @property
    def tpot_ms(self) -> Times:
        """(last - first token) / (tokens - 1) of the requests of at least two tokens."""
        return self._per_token_ms()[self._counted(self.tokens.outputs) > 1]

    def is_good(self, max_ttft_ms: float | None, max_tpot_ms: float | None) -> NDArray[np.bool_]:
        """Whether each request keeps both limits; one of a single token has no time per token to keep."""
        ttft = np.inf if max_ttft_ms is None else max_ttft_ms
        tpot = np.inf if max_tpot_ms is None else max_tpot_ms
        return (self.ttft_ms <= ttft) & (self._per_token_ms() <= tpot)

    def _per_token_ms(self) -> Times:
        steps = np.maximum(self._counted(self.tokens.outputs) - 1, 1)
        return self._counted(self.run.response_ms - self.run.ttft_ms) / steps

    def _counted(self, figures: NDArray[Any]) -> Times:
        return figures[self.first_counted :]


@dataclass(frozen=True)
class EngineModel:
    """A model with engines, each as (index in the request's list, engine), and what its replications need."""

    number: int
    model: SimulatedModel
    engines: tuple[tuple[int, EngineServer], ...]
    requests: int
    seed: int
    warmup_share: float
    replications: int
    frontend: tuple[FrontendTraffic, ...] = ()

    @property
    def servers(self) -> tuple[EngineServer, ...]:
        """The engines alone."""
        return tuple(server for _, server in self.engines)

    @cached_property
    def capacity_rps(self) -> float:
        """Completed requests/s when all are there at time 0, or what the front carries if that is less.

        The mean over the lengths of the replications. Raises InputFault if all steps take no time.
        """
        draws = range(self.replications if are_drawn(self.model) else 1)
        served = mean([self._at_once_rps(self.tokens(replication)) for replication in draws])
        return min(served, frontend_capacity_rps(self.frontend, self.number))

    def _at_once_rps(self, tokens: RequestTokens) -> float:
        at_once = np.zeros(self.requests)
        run = run_engines(self.servers, at_once, tokens.prompts, tokens.outputs, tokens.cached)
        length_s = float(run.last_token_s.max())
        if length_s == 0:
            raise InputFault(
                f"servers.{self.servers[0].id}.step",
                "takes 0 ms in every step of these requests",
                "Give a line its base_ms.",
            )
        return self.requests / length_s

    def tokens(self, replication: int) -> RequestTokens:
        """The lengths of a replication's requests."""
        seed = (self.seed, self.number, replication, 1)
        return request_tokens(self.model, self.servers, self.requests, seed)

    def run(self, replication: int, factor: float = 1.0) -> EngineReplication:
        """Run one replication with every rate times `factor`; every factor uses the same draws."""
        arrivals_s = self._arrivals_s(replication, factor)
        joined_s, passed_ms = arrivals_s, np.zeros(1)
        if self.frontend:
            seed = (self.seed, replication)
            arrivals_ms = arrivals_s * 1e3
            joined_ms = frontend_departures_ms(self.frontend, self.number, arrivals_ms, seed, factor)
            joined_s, passed_ms = joined_ms / 1e3, joined_ms - arrivals_ms
        tokens = self.tokens(replication)
        first_counted = warmup_count(self.requests, self.warmup_share)
        run = run_engines(
            self.servers,
            joined_s,
            tokens.prompts,
            tokens.outputs,
            tokens.cached,
            first_counted=first_counted,
        )
        return EngineReplication(arrivals_s, passed_ms, tokens, run, first_counted, self.model.front_ms)

    def _arrivals_s(self, replication: int, factor: float) -> Times:
        arrivals = self.model.arrivals
        if isinstance(arrivals, TraceArrivals) and not self.frontend:
            return np.array(arrivals.times_s, dtype=np.float64) / factor
        if isinstance(arrivals, DeterministicArrivals):
            return np.arange(1, self.requests + 1) / (arrivals.rate_rps * factor)
        rng = np.random.default_rng([self.seed, self.number, replication, 0])
        return arrival_times_ms(arrivals, self.requests, rng, factor) / 1e3


def prepare_engine_model(request: SimulationRequest, number: int, draws: int = 1) -> EngineModel:
    """Prepare the model of this index, which has engines; a trace is run `draws` times if lengths are drawn."""
    model = request.models[number]
    frontend = frontend_traffic(request) if model.front_ms else ()
    replications = 1
    if is_random(model.arrivals) or any(is_random(flow.arrivals) for flow in frontend):
        replications = request.replications
    elif are_drawn(model):
        replications = draws if isinstance(model.arrivals, TraceArrivals) else request.replications
    return EngineModel(
        number,
        model,
        tuple(
            (place, server)
            for place, server in enumerate(request.servers)
            if isinstance(server, EngineServer) and server.model == model.name
        ),
        limit_requests(frontend, number, request_count(model.arrivals, request.requests_per_model)),
        request.seed,
        request.warmup_share,
        replications,
        frontend,
    )
