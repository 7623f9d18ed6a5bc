"""What of a strategy is carried out: by a training run (`torchsplit train`), by an exported file (`strategy --export`).

Each choice or combination that is not carried out yet is a row of `LIMITS`, which the search, training runs and
exports ask. Who makes one run removes its row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, get_args

from torchsplit_core.values.strategy.request import SourceSizes, TransformerSizes
from torchsplit_core.values.training import RUN_PRECISIONS, SHARDED, ParallelConfig, Precision

Runner = Literal["train", "export"]
RUNNERS: tuple[Runner, ...] = get_args(Runner)


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What limits depend on beside the choices. `kv_heads`: 0 where it is not known; `traced`: not plain sizes."""

    experts: int = 1
    kv_heads: int = 0
    traced: bool = False


def traits_of(model: TransformerSizes | SourceSizes) -> ModelTraits:
    """The traits of a request's model."""
    if isinstance(model, SourceSizes):
        return ModelTraits(traced=True)
    return ModelTraits(model.experts, model.kv_heads)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A choice that is not carried out: its name and value, why, and what to do instead."""

    choice: str
    value: int | str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Limit:
    """`applies` says of which choices, model and precision; `why` may name the choices in braces."""

    choice: str
    runners: tuple[Runner, ...]
    applies: Callable[[ParallelConfig, ModelTraits, Precision], bool]
    why: str
    remedy: str


TRAIN: tuple[Runner, ...] = ("train",)
EXPORT: tuple[Runner, ...] = ("export",)
LIMITS = (
    _Limit(
        "context", RUNNERS, lambda choices, *_: choices.context > 1,
        "no sequence is divided among devices", "Fix context to 1.",
    ),
    _Limit(
        "expert", RUNNERS, lambda choices, *_: choices.expert > 1,
        "no experts are divided among devices", "Fix expert to 1.",
    ),
    _Limit(
        "expert", EXPORT, lambda choices, model, _: model.experts > 1 and choices.expert == 1,
        "the plain decoder of a file has no mixture of experts", "Train a model of yours by `torchsplit train`.",
    ),
    _Limit(
        "tensor", RUNNERS, lambda choices, model, _: model.kv_heads % choices.tensor > 0,
        "heads of the keys would have to be repeated", "Fix tensor to a divisor of them.",
    ),
    _Limit(
        "tensor", TRAIN, lambda choices, *_: choices.pipeline > 1 and choices.tensor > 1,
        "the traced stages of a pipeline have no modules to cut by tensors", "Fix tensor to 1, or pipeline to 1.",
    ),
    _Limit(
        "tensor", TRAIN,
        lambda choices, *_: choices.tensor > 1 and choices.data > 1 and choices.shard == "none",
        "with data {data} shard {shard} does not shard the weights", "Fix shard to fsdp, or data to 1.",
    ),
    _Limit(
        "shard", RUNNERS, lambda choices, *_: choices.shard == "zero1" and choices.tensor > 1,
        "ZeroRedundancyOptimizer does not divide states beside tensor parallelism",
        "Fix shard to fsdp or none, or tensor to 1.",
    ),
    _Limit(
        "shard", TRAIN, lambda choices, *_: choices.shard == "hsdp" and choices.tensor > 1,
        "a run has no replicas beside tensor parallelism", "Fix shard to fsdp or none, or tensor to 1.",
    ),
    _Limit(
        "shard", TRAIN, lambda choices, *_: choices.shard == "hsdp" and choices.pipeline > 1,
        "a run has no replicas beside a pipeline", "Fix shard to none, zero1, zero2 or fsdp, or pipeline to 1.",
    ),
    _Limit(
        "offload", RUNNERS, lambda choices, *_: choices.offload == "optimizer",
        "PyTorch moves weights, gradients and optimizer together", "Fix offload to parameters or none.",
    ),
    _Limit(
        "offload", RUNNERS, lambda choices, *_: choices.offload == "parameters" and choices.shard not in SHARDED,
        "shard {shard} does not shard the weights", "Fix shard to fsdp.",
    ),
    _Limit(
        "offload", TRAIN, lambda choices, *_: choices.offload == "parameters" and choices.pipeline > 1,
        "the stages of a pipeline keep their weights on the device in all passes",
        "Fix offload to none, or pipeline to 1.",
    ),
    _Limit(
        "interleave", RUNNERS, lambda choices, *_: choices.interleave > 1 and choices.pipeline == 1,
        "there is no pipeline whose stages it could divide", "Fix interleave to 1.",
    ),
    _Limit(
        "interleave", EXPORT, lambda choices, model, _: choices.interleave > 1 and model.traced,
        "a file cuts a traced model into one chunk a stage", "Fix interleave to 1.",
    ),
    _Limit(
        "precision", RUNNERS, lambda choices, model, precision: precision not in RUN_PRECISIONS,
        "fp16 needs a scaled loss, fp8 other layers", "Choose fp32, tf32 or bf16.",
    ),
)  # fmt: skip
"""In the order in which they are reported."""


def refusals(
    choices: ParallelConfig, precision: Precision, runner: Runner, model: ModelTraits | None = None
) -> tuple[Refusal, ...]:
    """Why a runner does not carry the choices out; empty where it does."""
    traits = model or ModelTraits()
    return tuple(
        Refusal(
            limit.choice,
            precision if limit.choice == "precision" else getattr(choices, limit.choice),
            limit.why.format(data=choices.data, shard=choices.shard),
            limit.remedy,
        )
        for limit in LIMITS
        if runner in limit.runners and limit.applies(choices, traits, precision)
    )


def runs(
    choices: ParallelConfig,
    precision: Precision,
    model: ModelTraits,
    *,
    runners: Collection[Runner] = RUNNERS,
    may_need: Collection[str] = (),
) -> bool:
    """Whether one of these runners carries the choices out, but for those that the request says it may need."""
    return any(
        all(refusal.choice in may_need for refusal in refusals(choices, precision, runner, model))
        for runner in runners
    )
