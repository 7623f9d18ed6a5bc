"""Costs of the front of a served plan, the one process that clients connect to."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values.fields import Amount, Count, Divisor, NonNegative
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.units import MB


@dataclass(frozen=True, slots=True)
class FrontCosts:
    """ms of one core that the front needs, measured on `host` under full load.

    A request costs `ms_per_request`, plus `ms_per_mb` for every 10^6 bytes of its inputs and outputs; passing a batch
    to a worker and back costs `ms_per_batch` and occupies the worker for `hand_over_ms` beside its computing, if front
    and worker have a core each. `ms_per_request_low` and `ms_per_request_high` are the least and the most of the timed
    blocks. `cores` of the host; None: unknown, and the front is assumed to have its own. `generator_ms`: what the load
    generator takes for a request, which counts when a plan is measured with both on one core.
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
        """ms of a core for one request; the cost of a batch is divided among its requests."""
        return (
            self.ms_per_request
            + self.ms_per_mb * bytes_per_request / MB
            + self.ms_per_batch * batches_per_request
        )


@dataclass(frozen=True, slots=True)
class PlannedFront:
    """How much of a plan's load the front carries.

    `load_factor`: the largest multiple of all demands that it carries. `core_share`: the share of one core that it
    needs at the demands. `shared`: every core of the host has a slice, so the front takes its time from the slices;
    `load_factor` includes that.
    """

    load_factor: NonNegative
    core_share: NonNegative
    shared: bool = False
