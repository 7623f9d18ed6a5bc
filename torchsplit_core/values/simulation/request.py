"""What a simulation is asked: models with their arrivals, and the servers that take their requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Amount,
    Count,
    Divisor,
    FileField,
    Name,
    NonEmpty,
    NonNegative,
    PercentileRank,
    Range,
    Whole,
)
from torchsplit_core.values.profile import Pace
from torchsplit_core.values.simulation.engine import EngineServer, Spread, TokenCounts


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Independent exponential times between requests, of mean 1 / `rate_rps`."""

    rate_rps: Divisor
    kind: Literal["poisson"] = "poisson"


@dataclass(frozen=True, slots=True)
class DeterministicArrivals:
    """The k-th request, from 1, at k / `rate_rps` seconds."""

    rate_rps: Divisor
    kind: Literal["deterministic"] = "deterministic"


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Independent gamma-distributed times between requests; `cv` is their standard deviation over their mean."""

    rate_rps: Divisor
    cv: Spread
    kind: Literal["gamma"] = "gamma"


@dataclass(frozen=True, slots=True)
class RateState:
    """Poisson arrivals of `rate_rps` for an exponential time of mean `mean_s`."""

    rate_rps: Amount
    mean_s: Divisor


@dataclass(frozen=True, slots=True)
class MmppArrivals:
    """A Markov-modulated Poisson process that goes through `states` in their order, again and again."""

    states: NonEmpty[tuple[RateState, ...]]
    kind: Literal["mmpp"] = "mmpp"


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """Requests at these seconds, never falling; equal times keep their order."""

    times_s: NonEmpty[tuple[NonNegative, ...]]
    kind: Literal["trace"] = "trace"


Arrivals = PoissonArrivals | DeterministicArrivals | GammaArrivals | MmppArrivals | TraceArrivals


@dataclass(frozen=True, slots=True)
class Service:
    """How a batch's time varies around its mean; `cv` (standard deviation over mean) is of lognormal times alone."""

    kind: Literal["deterministic", "exponential", "lognormal"] = "deterministic"
    cv: Added[Spread | None] = None


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model whose requests go through `stages` in this order; from stage i to i + 1 takes `transfer_ms[i]`.

    Empty `transfer_ms`: transfers take no time. Across cut i a batch of stage i carries `cut_bytes[i]`
    whatever its size and `cut_bytes_per_request[i]` for each request; both empty: unknown. `front_ms`: how long a
    request occupies the front, one process before all models that serves requests one at a time in order of arrival;
    0: no front. A model with engines has tokens: `cached_prompt_tokens` of its `prompt_tokens` are in the KV cache
    already. A request is good that keeps `max_ttft_ms` and `max_tpot_ms` both, where given.
    """

    name: Name
    stages: NonEmpty[tuple[Name, ...]]
    arrivals: Annotated[Arrivals, FileField(after="slo_ms")]
    transfer_ms: tuple[Amount, ...] = ()
    slo_ms: Divisor | None = None
    cut_bytes: Added[tuple[Amount, ...]] = ()
    cut_bytes_per_request: Added[tuple[Amount, ...]] = ()
    front_ms: Added[Amount] = 0.0
    prompt_tokens: Added[TokenCounts | None] = None
    output_tokens: Added[TokenCounts | None] = None
    cached_prompt_tokens: Added[TokenCounts | None] = None
    max_ttft_ms: Added[Divisor | None] = None
    max_tpot_ms: Added[Divisor | None] = None


@dataclass(frozen=True, slots=True)
class Server:
    """`count` equal servers of a stage, one behind the other in the list.

    `batch_ms` has the mean time of a batch by its size: linear between the sizes, below the smallest as that. With a
    `pace` all of them change their speed together.
    """

    id: Name
    model: Name
    stage: Name
    max_batch: Count
    batch_ms: NonEmpty[Mapping[Annotated[int, Range(ge=1, le=2**53)], Divisor]]
    count: Annotated[Count, FileField(after="stage")] = 1
    max_wait_ms: Annotated[Amount, FileField(after="max_batch")] = 0.0
    service: Service = field(default_factory=Service)
    pace: Added[Pace | None] = None


@dataclass(frozen=True, slots=True)
class MaxLoadSearch:
    """Ask for the largest common factor of all rates at which this percentile stays within each `slo_ms`."""

    percentile: PercentileRank = 95.0


QueueKind = Literal["shared", "per_server"]


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """The whole question."""

    models: NonEmpty[tuple[SimulatedModel, ...]]
    servers: NonEmpty[tuple[Server | EngineServer, ...]]
    queue: QueueKind = "shared"
    requests_per_model: Count = 100_000
    warmup_share: Annotated[float, Range(ge=0, lt=1)] = 0.1
    replications: Count = 5
    seed: Whole = 0
    find: Added[MaxLoadSearch | None] = None

    @property
    def batch_servers(self) -> tuple[Server, ...]:
        """The servers that take batches, in the order of the list."""
        return tuple(server for server in self.servers if isinstance(server, Server))

    @property
    def engines(self) -> tuple[EngineServer, ...]:
        """The servers that batch continuously, in the order of the list."""
        return tuple(server for server in self.servers if isinstance(server, EngineServer))
