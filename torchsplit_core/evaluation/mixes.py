"""The evaluated mixes, and the plan request of every case.

`four`: CLIP, BERT-large, FastPitch and OCR, each whole. `four_cut`: the same four, each in two stages, so that tensors
cross. `S1` and `S3`: the published mixes of the measured library. Demands, limits and the tensors between the four
models are not published: they are chosen here, and marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from torchsplit_core.files import read_text
from torchsplit_core.profiling.library import LIBRARY_GPU, mix_request, serving_mixes
from torchsplit_core.values import (
    Colocation,
    FleetEntry,
    InputFault,
    Objective,
    ObjectiveKind,
    PlanModel,
    PlanRequest,
    SolverOptions,
    Variant,
    quoted,
    suggestion,
)
from torchsplit_core.values.evaluation.outcome import CaseKey, MixDescription, Weighting

STOCK_LAYOUTS = (
    ("1g.10gb",) * 7,
    ("2g.20gb",) * 3,
    ("3g.40gb",) * 2,
    ("7g.80gb",),
    ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"),
)
"""Configurations of NVIDIA's mig-parted for an A100-80GB (deployments/systemd/config-ampere.yaml): all-1g.10gb,
all-2g.20gb, all-3g.40gb, all-7g.80gb and all-balanced."""

FOUR_GPUS = 4
"""As many as models, so that each can have a whole GPU."""

DEMANDS: Mapping[str, tuple[float, float]] = {
    "clip": (700.0, 100.0),
    "bert": (900.0, 200.0),
    "fastpitch": (500.0, 50.0),
    "ocr": (800.0, 50.0),
}
"""Requests/s, and ms of a batch at most. Chosen: about 2.5 whole A100 of work, with CLIP more than one."""

FOUR_LINK_GB_PER_S = 12.0
"""Between the stages of a cut model, 10^9 bytes/s. Assumed: slices are only connected by host memory."""

IMAGE_BYTES = 602_112.0
"""A 224 × 224 float32 image of three channels. Assumed: the published mixes name no tensors between models."""

FOUR_PAIRS = (("ocr", "bert", 25_220.0), ("bert", "fastpitch", 524_288.0))
"""Text that is read, understood and spoken: the scores of OCR's 65 columns × 97 characters, the hidden states of
BERT-large's 128 tokens. An assumed use of these models."""

CUT_TIED = ("clip", "bert")
"""The models whose stages are co-located: nearly a megabyte a request crosses the cut of each."""

CUT_BATCHES = (1, 4, 16, 64)
"""Batch sizes of the stages: with more, the search splits the limits over more pairs than it has time for."""

FAVOUR = 2.0
"""Weight of the first model of a mix if it is favoured, against 1 of the others."""


OBJECTIVES: Mapping[Weighting, ObjectiveKind] = {
    "equal": "leximin",
    "favoured": "leximin",
    "throughput": "weighted_sum",
    "fewest_gpus": "min_gpus",
}


@dataclass(frozen=True, slots=True)
class TensorPair:
    """Two members of a co-location (see planning.request.colocation_index); the first sends to the second."""

    first: str
    second: str
    bytes_per_request: float


@dataclass(frozen=True, slots=True)
class Mix:
    """A mix of the grid: its request without what the grid varies, and its tensor pairs."""

    description: MixDescription
    request: PlanRequest
    pairs: tuple[TensorPair, ...]


@lru_cache(maxsize=1)
def four_models() -> tuple[PlanModel, ...]:
    """CLIP, BERT-large, FastPitch and OCR on an A100-80GB, from tools/write_evaluation_models.py."""
    text = (resources.files("torchsplit_core.evaluation") / "data" / "four_models.json").read_text("utf-8")
    request: PlanRequest = read_text(text, origin="four_models.json")[1]
    return request.models


@lru_cache(maxsize=8)
def mix(name: str) -> Mix:
    """The mix of that name. Raises InputFault for an unknown one."""
    made = MIXES.get(name)
    if made is None:
        raise InputFault("", f"unknown mix {quoted(name)}", suggestion(name, MIXES, "mixes"))
    return made()


def case_request(key: CaseKey, time_limit_s: float) -> PlanRequest:
    """The request of a case, the same for baselines and planner. Raises InputFault for an unknown mix."""
    case_mix = mix(key.mix)
    layouts = STOCK_LAYOUTS if key.regime == "stock" else None
    models = case_mix.request.models
    if key.weights == "favoured":
        models = (replace(models[0], weight=FAVOUR), *models[1:])
    if key.weights == "fewest_gpus":
        models = tuple(replace(model, min_throughput_rps=model.demand_rps) for model in models)
    return replace(
        case_mix.request,
        gpus=tuple(replace(entry, layouts=layouts) for entry in case_mix.request.gpus),
        models=models,
        colocations=_colocations(case_mix, key),
        objective=Objective(OBJECTIVES[key.weights]),
        sharing=key.sharing,
        solver=SolverOptions(time_limit_s),
    )


def _colocations(case_mix: Mix, key: CaseKey) -> tuple[Colocation, ...]:
    if key.colocation == "off":
        return ()
    if key.colocation == "hard":
        return tuple(Colocation((pair.first, pair.second), "hard") for pair in case_mix.pairs)
    mode = key.colocation
    return tuple(
        Colocation((pair.first, pair.second), mode, pair.bytes_per_request) for pair in case_mix.pairs
    )


def _four_mix() -> Mix:
    models = tuple(_uncut_only(_with_demand(model)) for model in four_models())
    description = MixDescription(
        "four",
        "CLIP, BERT, FastPitch and OCR",
        "CLIP (ViT-B/32), BERT-large, FastPitch and OCR at real dimensions. BERT has the measured rows of the "
        "published library, where its size and sequence length are not told; CLIP, FastPitch and OCR on an A100 are "
        "estimated from their graphs, with 90 % intervals. Demands, limits and the tensors that OCR hands to BERT "
        "and BERT to FastPitch are chosen here.",
        LIBRARY_GPU,
        FOUR_GPUS,
        tuple(model.name for model in models),
    )
    pairs = tuple(TensorPair(*pair) for pair in FOUR_PAIRS)
    return Mix(description, PlanRequest((FleetEntry(LIBRARY_GPU, count=FOUR_GPUS),), models), pairs)


def _four_cut_mix() -> Mix:
    models = tuple(_cut_only(_with_demand(model)) for model in four_models())
    description = MixDescription(
        "four_cut",
        "CLIP, BERT, FastPitch and OCR, each cut in two",
        "The same four models and demands, each made to run as two stages, so that tensors cross a cut. Where they are "
        "cut is the best partition by the search; the stages' times are the whole model's by the shares of its graph: "
        "all of it is estimated, BERT without an interval. Tied are the stages of CLIP and of BERT, which hand on the "
        "largest tensors.",
        LIBRARY_GPU,
        FOUR_GPUS,
        tuple(model.name for model in models),
    )
    pairs = []
    for model in models:
        if model.name not in CUT_TIED:
            continue
        (variant,) = model.variants
        first, second = (stage.name for stage in variant.stages)
        carried = variant.cut_bytes[0] + sum(variant.cut_bytes_per_request)
        pairs.append(TensorPair(f"{model.name}/{first}", f"{model.name}/{second}", carried))
    request = PlanRequest(
        (FleetEntry(LIBRARY_GPU, count=FOUR_GPUS),), models, link_gb_per_s=FOUR_LINK_GB_PER_S
    )
    return Mix(description, request, tuple(pairs))


def _published_mix(name: str) -> Callable[[], Mix]:
    def build() -> Mix:
        request = mix_request(name)
        images = [model.name for model in request.models if model.name != "bert"]
        description = MixDescription(
            name,
            f"The published mix {name}",
            "Measured on the slices of one A100-80GB (ParvaGPU, SC'24), with its rates and 0.45 of its objectives as "
            "limits of a batch. It does not say that models hand anything on: that each second image model gets the "
            "image from the one before it is assumed.",
            LIBRARY_GPU,
            sum(entry.count for entry in request.gpus),
            tuple(model.name for model in request.models),
        )
        pairs = tuple(
            TensorPair(first, second, IMAGE_BYTES)
            for first, second in zip(images[::2], images[1::2], strict=False)
        )
        return Mix(description, request, pairs)

    return build


MIXES: Mapping[str, Callable[[], Mix]] = {
    "four": _four_mix,
    "four_cut": _four_cut_mix,
    **{published.name: _published_mix(published.name) for published in serving_mixes()},
}
"""Every mix by name, in the order of the tables."""


def _with_demand(model: PlanModel) -> PlanModel:
    demand, limit = DEMANDS[model.name]
    return replace(model, demand_rps=demand, max_latency_ms=limit)


def _uncut_only(model: PlanModel) -> PlanModel:
    return replace(model, variants=tuple(v for v in model.variants if len(v.stages) == 1))


def _cut_only(model: PlanModel) -> PlanModel:
    return replace(model, variants=tuple(_reduced_points(v) for v in model.variants if len(v.stages) > 1))


def _reduced_points(variant: Variant) -> Variant:
    """The variant with one process a slice, and CUT_BATCHES."""
    stages = tuple(
        replace(
            stage,
            points=tuple(
                point for point in stage.points if point.processes == 1 and point.batch_size in CUT_BATCHES
            ),
        )
        for stage in variant.stages
    )
    return replace(variant, stages=stages)
