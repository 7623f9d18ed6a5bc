"""Choices that the search can estimate, but that neither a training run nor an exported script carries out."""

from __future__ import annotations

from torchsplit_core.values.training import RUN_PRECISIONS, ParallelConfig, Precision


def unsupported_choices(choices: ParallelConfig, precision: Precision, experts: int = 1) -> tuple[str, ...]:
    """The names of these choices, in the order in which an export reports them. `experts`: of the model."""
    unsupported = {
        "precision": precision not in RUN_PRECISIONS,
        "tensor": experts > 1 and choices.tensor > 1,
        "shard": choices.expert > 1 and choices.shard == "zero1",
        "offload": choices.offload == "optimizer",
    }
    return tuple(name for name, applies in unsupported.items() if applies)
