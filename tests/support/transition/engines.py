"""Engines on groups of GPUs, for states and plans."""

from dataclasses import replace

from tests.support.transition.instances import tenant
from torchsplit_core.values import WHOLE_GPU, PlannedEngine, PlannedGpu, PlannedSlice, Tenant


def engine_tenant(
    model: str, group: str | None, gpus: int = 2, rate: float = 10.0, seqs: int = 128
) -> Tenant:
    """On one GPU of its group: `rate` is the whole engine's."""
    engine = PlannedEngine(gpus, group, 4096, 16, seqs, 2048, 8192, True, None)
    return replace(tenant(model, rate=rate / gpus), batch_size=seqs, engine=engine)


def group_gpus(
    group: str, *ids: str, model: str = "chat", rate: float = 10.0, seqs: int = 128
) -> list[PlannedGpu]:
    """GPUs that one engine takes."""
    member = PlannedSlice(WHOLE_GPU, 0, (engine_tenant(model, group, len(ids), rate, seqs),))
    return [PlannedGpu(name, "A100-80GB", True, (member,), False, group) for name in ids]


def alone(gpu: str, model: str) -> PlannedGpu:
    """A model on a whole GPU."""
    return PlannedGpu(gpu, "A100-80GB", True, (PlannedSlice(WHOLE_GPU, 0, (tenant(model),)),))
