"""What the front of a served plan costs: the one process that its clients talk to."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values.fields import Amount, Count, Divisor, NonNegative
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.units import MB


@dataclass(frozen=True, slots=True)
class FrontCosts:
    """ms of one core that the front needs, measured on `host` while it had all the work that it could take.

    A request takes `ms_per_request`, and `ms_per_mb` for every 10^6 bytes of its inputs and outputs; a batch that
    is handed to a worker and comes back takes `ms_per_batch`. Of that batch the worker is held `hand_over_ms`
    beside its computing, where front and worker have a core each. `ms_per_request_low` and `ms_per_request_high`
    are the least and the most of the blocks that were timed. `cores` are the host's; None: not told, and the
    front is taken to have a core of its own. `generator_ms` is what our own load generator takes for a request: it
    counts where a plan is measured and both are on one core.
    """

    ms_per_request: Divisor
    ms_per_batch: Amount = 0.0
    ms_per_mb: Amount = 0.0
    hand_over_ms: Amount = 0.0
    ms_per_request_low: Amount | None = None
    ms_per_request_high: Amount | None = None
    cores: Count | None = None
    host: str = ""
    generator_ms: Amount = 0.0
    basis: Basis = "measured"

    def ms(self, bytes_per_request: float, batches_per_request: float) -> float:
        """ms of a core for one request, its batches shared with those that are in them."""
        return (
            self.ms_per_request
            + self.ms_per_mb * bytes_per_request / MB
            + self.ms_per_batch * batches_per_request
        )


@dataclass(frozen=True, slots=True)
class PlannedFront:
    """What the front carries of a plan.

    `load_factor`: so many times all demands, at the most; below 1 the front does not carry the demands. `core_share`:
    the share of one core that it needs at the demands. `shared`: no core of the host is without a slice, so that the
    front takes its time from the slices, which `load_factor` counts.
    """

    load_factor: NonNegative
    core_share: NonNegative
    shared: bool = False
