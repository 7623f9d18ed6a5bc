"""What strategies are supported by a training run (`torchsplit train`), and by an exported file (`strategy --export`).

Each unsupported choice or combination is a row of `LIMITS`, which the search, training runs and exports consult.
Whoever implements one removes its row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Literal, get_args

from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.strategy.request import Choice, SourceSizes, StrategyFix, TransformerSizes
from torchsplit_core.values.training import RUN_PRECISIONS, SHARDED, Offload, ParallelConfig, Precision, Shard

Runner = Literal["train", "export"]
RUNNERS: tuple[Runner, ...] = get_args(Runner)
SHARDS: tuple[Shard, ...] = get_args(Shard)
OFFLOADS: tuple[Offload, ...] = get_args(Offload)


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What limits depend on besides the choices. `kv_heads`: 0 if unknown; `traced`: not plain sizes."""

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
    """An unsupported choice: its name and value, why, and what to do instead."""

    choice: Choice
    value: int | str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Limit:
    """`applies` tests choices, model and precision; `why` may name the choices in braces."""

    choice: Choice
    runners: tuple[Runner, ...]
    applies: Callable[[ParallelConfig, ModelTraits, Precision], bool]
    why: str
    remedy: str


EXPORT_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16")


def _is_divided(choices: ParallelConfig) -> bool:
    """Whether a rank has only a part of the weights."""
    whole = max(choices.tensor, choices.pipeline, choices.context, choices.expert) == 1
    return choices.shard in SHARDED or not whole


COUNTS = ("data", "tensor", "pipeline", "context", "expert", "interleave")
TRAIN: tuple[Runner, ...] = ("train",)
EXPORT: tuple[Runner, ...] = ("export",)
LIMITS = (
    _Limit(
        "expert", TRAIN, lambda choices, *_: choices.expert > 1 and choices.tensor > 1,
        "the weights of an expert are not cut by tensors", "Fix expert or tensor to 1.",
    ),
    _Limit(
        "tensor", EXPORT, lambda choices, model, _: max(model.experts, choices.expert) > 1 and choices.tensor > 1,
        "the weights of an expert are not cut by tensors", "Fix tensor to 1.",
    ),
    _Limit(
        "tensor", RUNNERS, lambda choices, model, _: model.kv_heads % choices.tensor > 0,
        "heads of the keys would have to be repeated", "Fix tensor to a divisor of them.",
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
        "interleave", RUNNERS, lambda choices, *_: choices.interleave > 1 and choices.pipeline == 1,
        "there is no pipeline whose stages it could divide", "Fix interleave to 1.",
    ),
    _Limit(
        "interleave", EXPORT, lambda choices, model, _: choices.interleave > 1 and model.traced,
        "a file cuts a traced model into one chunk a stage", "Fix interleave to 1.",
    ),
    _Limit(
        "precision", EXPORT, lambda choices, model, precision: precision not in EXPORT_PRECISIONS,
        "fp16 needs a scaled loss, fp8 other layers", "Choose fp32, tf32 or bf16.",
    ),
    _Limit(
        "precision", TRAIN, lambda choices, model, precision: precision not in RUN_PRECISIONS,
        "fp8 needs other layers", "Choose fp32, tf32, bf16 or fp16.",
    ),
    _Limit(
        "precision", TRAIN, lambda choices, model, precision: precision == "fp16" and _is_divided(choices),
        "the loss is scaled where each rank has whole weights", "Choose bf16, or fix shard to none or zero1.",
    ),
)  # fmt: skip
"""In the order in which they are reported. Of counts other than tensor they test only whether they exceed 1, and they
ignore micro-batches and recomputation (`Runnable.storages`)."""


def refusals(
    choices: ParallelConfig, precision: Precision, runner: Runner, model: ModelTraits | None = None
) -> tuple[Refusal, ...]:
    """Why a runner does not support the choices; empty if it does."""
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


@dataclass(frozen=True, slots=True)
class Runnable:
    """Choices that all the runners support, apart from those that the request may need."""

    precision: Precision
    model: ModelTraits
    may_need: tuple[str, ...] = ()
    runners: tuple[Runner, ...] = RUNNERS

    def includes(self, choices: ParallelConfig) -> bool:
        """Whether the choices can be run."""
        return all(not self.missing(choices, runner) for runner in self.runners)

    def missing(self, choices: ParallelConfig, runner: Runner) -> list[Refusal]:
        """What this runner lacks for the choices."""
        reasons = refusals(choices, self.precision, runner, self.model)
        return [refusal for refusal in reasons if refusal.choice not in self.may_need]

    def storages(self, shape: ParallelConfig) -> frozenset[tuple[Shard, Offload]]:
        """The runnable ways to store the states of a shape."""
        return _running_storages(
            self,
            ParallelConfig(
                min(shape.data, 2),
                shape.tensor,
                min(shape.pipeline, 2),
                min(shape.context, 2),
                min(shape.expert, 2),
                interleave=min(shape.interleave, 2),
                sequence_parallel=shape.sequence_parallel,
            ),
        )

    def anything(self) -> Runnable:
        """The same for a request that may need every choice."""
        return replace(self, may_need=get_args(Choice))

    def check_fix(self, fix: StrategyFix) -> None:
        """Raises InputFault for a precision or fixed choices that never run, whatever the free ones are."""
        given = fix.given()
        nearest: Refusal | None = None
        fewest, lacking = len(RUNNERS) * len(LIMITS) + 1, self.runners
        for counts in product((1, 2), repeat=len(COUNTS)):
            for shard, offload in product(SHARDS, OFFLOADS):
                free = dict(zip(COUNTS, counts, strict=True)) | {"shard": shard, "offload": offload}
                choices = ParallelConfig(**(free | given))  # type: ignore[arg-type]
                missing = {runner: self.missing(choices, runner) for runner in self.runners}
                reasons = [refusal for refused in missing.values() for refusal in refused]
                if not reasons:
                    return
                if len(reasons) < fewest:
                    fewest, nearest = len(reasons), reasons[0]
                    lacking = tuple(runner for runner in self.runners if missing[runner])
        assert nearest is not None, "a choice that does not run has a reason"
        value = nearest.value if isinstance(nearest.value, int) else quoted(nearest.value)
        by = {TRAIN: "no training run carries", EXPORT: "no exported file carries"}.get(
            lacking, "neither a training run nor an exported file carries"
        )
        raise InputFault(
            "training.precision" if nearest.choice == "precision" else f"fix.{nearest.choice}",
            f"is {value}, which {by} out yet: {nearest.why}",
            f'Change it, or add "{nearest.choice}" to may_need to see estimates of it.',
        )


@lru_cache(maxsize=4096)
def _running_storages(runnable: Runnable, shape: ParallelConfig) -> frozenset[tuple[Shard, Offload]]:
    return frozenset(
        (shard, offload)
        for shard, offload in product(SHARDS, OFFLOADS)
        if runnable.includes(replace(shape, shard=shard, offload=offload))
    )
