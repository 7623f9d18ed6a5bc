"""Who uses a slice."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values.fields import Added, Count, Name, NonNegative
from torchsplit_core.values.plan.llm import PlannedEngine
from torchsplit_core.values.profile import Basis


@dataclass(frozen=True, slots=True)
class Tenant:
    """One instance of a stage on a slice, with its share of the slice's time.

    `throughput_rps` is its share of its point's; `low_rps` and `high_rps` are the interval of the point itself.
    `engine`: of an LLM. On each GPU of a group stands the engine's throughput divided by the group's GPUs.
    """

    model: Name
    variant: Name
    stage: Name
    share: NonNegative
    batch_size: Count
    processes: Count
    throughput_rps: NonNegative
    memory_gib: NonNegative | None
    basis: Basis | None = None
    low_rps: NonNegative | None = None
    high_rps: NonNegative | None = None
    engine: Added[PlannedEngine | None] = None

    @property
    def gpus(self) -> int:
        """GPUs that the instance takes, of which this is one."""
        return 1 if self.engine is None else self.engine.tensor_parallel
