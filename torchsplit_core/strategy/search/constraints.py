"""Checks whether any choice satisfies the fixes: each against the model and the job, then all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.values.errors import InputFault
from torchsplit_core.values.strategy.request import StrategyFix


def check_fixed_choices(space: SearchSpace, devices: int) -> None:
    """Raises InputFault for a fix that does not divide, and for fixes that no choice satisfies together."""
    fix, model, batch = space.fix, space.model, space.job.global_batch
    if not fix.given():
        return
    _divides("tensor", fix.tensor, model.heads, "the heads")
    _divides("tensor", fix.tensor, model.ffn, "the feed-forward")
    _divides("expert", fix.expert, model.experts, "the experts")
    _divides("data", fix.data, batch, "the batch")
    _divides("micro_batch", fix.micro_batch, batch, "the batch")
    chunks = (fix.pipeline or 1) * (fix.interleave or 1)
    if chunks > model.layers:
        name = "pipeline" if (fix.pipeline or 1) > 1 else "interleave"
        raise InputFault(
            f"fix.{name}",
            f"makes {chunks} chunks of {model.layers} layers",
            "Fix fewer stages or less interleaving.",
        )
    together = 1
    for name in ("data", "tensor", "pipeline", "context"):
        value = getattr(fix, name) or 1
        if value > devices:
            raise InputFault(
                f"fix.{name}",
                f"is {value}, more than the {devices} devices of the fleet",
                "Fix fewer, or add nodes.",
            )
        together *= value
    if together > devices:
        raise InputFault(
            "fix",
            f"data × tensor × pipeline × context is {together}, more than the {devices} devices of the fleet",
            "Fix less, or add nodes.",
        )
    if space.is_empty(devices):
        _raise_contradiction(space, devices)


def check_fixed_choices_of_any(spaces: Sequence[SearchSpace], devices: Sequence[int]) -> None:
    """Raises InputFault for fixes that no entry of a fleet of several can satisfy; they apply to each entry.

    The entries divide the batch as they like, so nothing has to divide it.
    """
    fix, model, batch = spaces[0].fix, spaces[0].model, spaces[0].job.global_batch
    if not fix.given():
        return
    _divides("tensor", fix.tensor, model.heads, "the heads")
    _divides("tensor", fix.tensor, model.ffn, "the feed-forward")
    _divides("expert", fix.expert, model.experts, "the experts")
    for name in ("data", "micro_batch"):
        if (getattr(fix, name) or 1) > batch:
            raise InputFault(
                f"fix.{name}", f"is {getattr(fix, name)}, more than the batch of {batch}", "Fix less."
            )
    # A batch that every division of the devices divides, in rounds of as many micro-batches as stages.
    whole = [
        replace(space, job=replace(space.job, global_batch=count * (fix.micro_batch or 1)))
        for space, count in zip(spaces, devices, strict=True)
    ]
    if all(next(space.choices(count), None) is None for space, count in zip(whole, devices, strict=True)):
        listed = ", ".join(f"{key} {value}" for key, value in fix.given().items())
        raise InputFault(
            "fix", f"{listed}: no entry of the fleet has a choice with all of these", "Free one of them."
        )


def _divides(name: str, value: int | None, whole: int, words: str) -> None:
    if value is not None and whole % value:
        raise InputFault(
            f"fix.{name}", f"is {value}, which does not divide {words}, {whole}", "Fix a divisor."
        )


def _raise_contradiction(space: SearchSpace, devices: int) -> None:
    """Raise for a minimal set of fixes without any choice: drops each fix whose absence still leaves none."""
    needed = space.fix.given()
    for name in tuple(needed):
        rest = {key: value for key, value in needed.items() if key != name}
        fix = StrategyFix(**rest)  # type: ignore[arg-type]
        if replace(space, fix=fix).is_empty(devices):
            needed = rest
    listed = ", ".join(f"{key} {value}" for key, value in needed.items())
    if not needed:
        raise InputFault(
            "training.global_batch",
            f"is {space.job.global_batch}; no choice for at most {devices} devices divides the model and this batch",
            "Change the batch or the fleet.",
        )
    raise InputFault(
        f"fix.{next(iter(needed))}" if len(needed) == 1 else "fix",
        f"{listed}: no choice for at most {devices} devices has "
        + ("it" if len(needed) == 1 else "all of these at once: they contradict each other"),
        "Free it." if len(needed) == 1 else "Free one of them.",
    )
