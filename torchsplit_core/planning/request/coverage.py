"""Which models have figures for which GPUs of a fleet: without a point on a GPU type a model cannot be put there."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values import PlanModel, PlanRequest, point_type


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A GPU type of the fleet, and the models without a point on it, of `total` that are asked for."""

    gpu_type: str
    models: tuple[str, ...]
    total: int

    @property
    def nobody(self) -> bool:
        """Whether no model at all can be put on it."""
        return len(self.models) == self.total


def uncovered(request: PlanRequest) -> tuple[Uncovered, ...]:
    """The GPU types for which some model has no point in any way to run that is allowed; in the fleet's order."""
    known = {model.name: _types(model) for model in request.models}
    found = []
    for kind in dict.fromkeys(entry.type for entry in request.gpus):
        if missing := tuple(name for name, types in known.items() if point_type(kind) not in types):
            found.append(Uncovered(kind, missing, len(known)))
    return tuple(found)


def without_figures(request: PlanRequest) -> tuple[str, ...]:
    """The models without a point on any GPU type of the fleet."""
    fleet = {point_type(entry.type) for entry in request.gpus}
    return tuple(model.name for model in request.models if not fleet & _types(model))


def _types(model: PlanModel) -> frozenset[str]:
    return frozenset(
        point.gpu_type
        for _, variant in model.allowed_variants
        for stage in variant.stages
        for point in stage.points
    )
