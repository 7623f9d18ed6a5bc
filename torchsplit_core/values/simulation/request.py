"""What a simulation is asked: models with their arrivals, and the servers that take their requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchsplit_core.values.profile import Pace


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Independent exponential times between requests, of mean 1 / `rate_rps`."""

    rate_rps: float
    kind: Literal["poisson"] = "poisson"


@dataclass(frozen=True, slots=True)
class DeterministicArrivals:
    """The k-th request, from 1, at k / `rate_rps` seconds."""

    rate_rps: float
    kind: Literal["deterministic"] = "deterministic"


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Independent gamma-distributed times between requests; `cv` is their standard deviation over their mean."""

    rate_rps: float
    cv: float
    kind: Literal["gamma"] = "gamma"


@dataclass(frozen=True, slots=True)
class RateState:
    """Poisson arrivals of `rate_rps` for an exponential time of mean `mean_s`."""

    rate_rps: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class MmppArrivals:
    """A Markov-modulated Poisson process that goes through `states` in their order, again and again."""

    states: tuple[RateState, ...]
    kind: Literal["mmpp"] = "mmpp"


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """Requests at these seconds, never falling; equal times keep their order."""

    times_s: tuple[float, ...]
    kind: Literal["trace"] = "trace"


Arrivals = PoissonArrivals | DeterministicArrivals | GammaArrivals | MmppArrivals | TraceArrivals


@dataclass(frozen=True, slots=True)
class Service:
    """How a batch's time varies around its mean; `cv` (standard deviation over mean) is of lognormal times alone."""

    kind: Literal["deterministic", "exponential", "lognormal"] = "deterministic"
    cv: float | None = None


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model whose requests go through `stages` in this order; from stage i to i + 1 takes `transfer_ms[i]`.

    Empty `transfer_ms`: transfers take no time. Across cut i a batch of stage i carries `cut_bytes[i]`
    whatever its size and `cut_bytes_per_request[i]` for each request; both empty: unknown. `front_ms`: so long a
    request of it keeps the front, one process in front of all models that takes one request at a time, in the order
    in which they come; 0: it passes none.
    """

    name: str
    stages: tuple[str, ...]
    arrivals: Arrivals
    transfer_ms: tuple[float, ...] = ()
    slo_ms: float | None = None
    cut_bytes: tuple[float, ...] = ()
    cut_bytes_per_request: tuple[float, ...] = ()
    front_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """`count` equal servers of a stage, one behind the other in the list.

    `batch_ms` has the mean time of a batch by its size: linear between the sizes, below the smallest as that. With a
    `pace` all of them change their speed together.
    """

    id: str
    model: str
    stage: str
    max_batch: int
    batch_ms: Mapping[int, float]
    count: int = 1
    max_wait_ms: float = 0.0
    service: Service = field(default_factory=Service)
    pace: Pace | None = None


@dataclass(frozen=True, slots=True)
class MaxLoadSearch:
    """Ask for the largest common factor of all rates at which this percentile stays within each `slo_ms`."""

    percentile: float = 95.0


QueueKind = Literal["shared", "per_server"]


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """The whole question."""

    models: tuple[SimulatedModel, ...]
    servers: tuple[Server, ...]
    queue: QueueKind = "shared"
    requests_per_model: int = 100_000
    warmup_share: float = 0.1
    replications: int = 5
    seed: int = 0
    find: MaxLoadSearch | None = None
