"""Which models have points on which GPU types of a fleet; without one a model cannot run on the type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.hardware import catalogue, gpu_type, peak_names
from torchsplit_core.planning.request.fleet import is_unpartitioned
from torchsplit_core.values import CPU, WHOLE_GPU, FleetEntry, InputFault, PlanModel, PlanRequest, point_type

_GpuKind = tuple[str, bool]
"""The gpu_type of points, and whether they are on the whole GPU."""


@dataclass(frozen=True, slots=True)
class UncoveredGpuType:
    """A GPU type of the fleet, and the models without a point on it, of `total` in the request.

    `whole`: MIG is off, so points of its slices do not apply.
    """

    gpu_type: str
    models: tuple[str, ...]
    total: int
    whole: bool = False

    @property
    def unusable(self) -> bool:
        """Whether no model can run on it."""
        return len(self.models) == self.total

    @property
    def name(self) -> str:
        """As in fleets and `estimate --to`: `A100-80GB:whole`."""
        return f"{self.gpu_type}:whole" if self.whole else self.gpu_type

    @property
    def estimable(self) -> bool:
        """Whether the catalogue has peaks to estimate with; cores have none."""
        return self.gpu_type in peak_names() and gpu_type(self.gpu_type).divided != "cores"


def uncovered_gpu_types(request: PlanRequest) -> tuple[UncoveredGpuType, ...]:
    """The GPU types on which some model has no point in any allowed variant, in the fleet's order."""
    # What engines an LLM may have follows from its sizes, so none is missing that could be measured first.
    known = {model.name: _gpu_kinds(model) for model in request.models if model.llm is None}
    gaps = []
    for kind, whole, either in dict.fromkeys(
        (entry.type, is_unpartitioned(entry), entry.mig == "either") for entry in request.gpus
    ):
        of_type = {(point_type(kind), whole), (point_type(kind), whole or either)}
        if missing := tuple(name for name, gpu_kinds in known.items() if of_type.isdisjoint(gpu_kinds)):
            total = len(request.models)
            gaps.append(UncoveredGpuType(kind, missing, total, whole and kind in catalogue()))
    return tuple(gaps)


def models_without_figures(request: PlanRequest) -> tuple[str, ...]:
    """The models without a point on any GPU type of the fleet."""
    return tuple(model.name for model in request.models if not has_figures(request, model))


def has_figures(request: PlanRequest, model: PlanModel) -> bool:
    """Whether the model has a point on some GPU type of the fleet in an allowed variant, or is an LLM."""
    if model.llm is not None:
        return True
    kinds = {kind for entry in request.gpus for kind in _fleet_kinds(entry)}
    return not _gpu_kinds(model).isdisjoint(kinds)


def check_figures(request: PlanRequest) -> None:
    """Raise InputFault if no model has a point on any GPU type of the fleet.

    Separate from `validate`: a request that is being built or derived may have none yet.
    """
    if len(models_without_figures(request)) < len(request.models):
        return
    missing = uncovered_gpu_types(request)
    names = ", ".join(gap.name for gap in missing)
    raise InputFault(
        "gpus", f"no model has figures for {names}{_known_types_text(request)}", _remedy(request, missing)
    )


def figure_warnings(request: PlanRequest) -> tuple[str, ...]:
    """First the GPU types of the fleet without figures, then the models with figures for none of them."""
    unusable = tuple(gap for gap in uncovered_gpu_types(request) if gap.unusable)
    names = ", ".join(gap.name for gap in unusable)
    idle = (
        (f"No model has figures for {names}, so these GPUs stay idle. {_remedy(request, unusable)}",)
        if unusable
        else ()
    )
    unserved = models_without_figures(request)
    if not unserved:
        return idle
    fleet = ", ".join(dict.fromkeys(entry.type for entry in request.gpus))
    gaps = tuple(gap for gap in uncovered_gpu_types(request) if set(unserved) & set(gap.models))
    its = "its" if len(unserved) == 1 else "their"
    warning = (
        f"{', '.join(unserved)}: no figures for {fleet}, so {its} throughput is 0. {_remedy(request, gaps)}"
    )
    return (*idle, warning)


def _known_types_text(request: PlanRequest) -> str:
    known = dict.fromkeys(kind for model in request.models for kind, _ in sorted(_gpu_kinds(model)))
    return f", only for {', '.join(known)}" if known else ", nor for any other"


def _remedy(request: PlanRequest, missing: Sequence[UncoveredGpuType]) -> str:
    """The command that brings the figures if they can be estimated; else what to measure."""
    estimable = [gap.name for gap in missing if gap.estimable]
    if estimable and any(kind != CPU for model in request.models for kind, _ in _gpu_kinds(model)):
        to = ",".join(dict.fromkeys(estimable))
        return f"Estimate them from the others: torchsplit estimate REQUEST.json --to {to} -o REQUEST2.json."
    device = "cuda" if estimable else "cpu:1c"
    return (
        f"Measure the models there (torchsplit profile SOURCE --device {device}) and make the request anew."
    )


def _fleet_kinds(entry: FleetEntry) -> tuple[_GpuKind, ...]:
    whole = is_unpartitioned(entry)
    kinds = (point_type(entry.type), whole), (point_type(entry.type), whole or entry.mig == "either")
    return tuple(dict.fromkeys(kinds))


def _gpu_kinds(model: PlanModel) -> frozenset[_GpuKind]:
    return frozenset((point.gpu_type, point.profile == WHOLE_GPU) for point in model.allowed_points)
