"""An explanation in words: what binds, what a change would bring, why not another layout. No streamlit in here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchsplit_core.pictures.numbers import THIN, exact, percent, short
from torchsplit_core.planning.request.objective import GOALS
from torchsplit_core.values import (
    ChangeEffect,
    EngineReason,
    LayoutReason,
    ModelBinding,
    ModelLimit,
    PriceStep,
)

NOT_EXAMINED = "not examined in the time given"
STEPS = {
    "relaxed": "GPUs and slices that can be cut freely",
    "pooled": "real layouts, equal slices counted as one",
    "packed": "the same on particular slices",
    "shared": "slices shared",
    "whole_slices": "every instance with a slice to itself",
    "plan": "this plan",
}
"""The steps from the loosest relaxation to the plan in words."""


LIMITS_MS = {
    "max_latency_ms": "service-time limit",
    "max_ttft_ms": "TTFT limit",
    "max_tpot_ms": "TPOT limit",
}
"""Limits in ms in words."""


def describe_limit(limit: ModelLimit) -> str:
    """A limit of a model in words."""
    change = limit.change
    if limit.kind == "capacity":
        return "GPUs"
    if limit.kind == "no_admissible_point":
        return "it has no figures that fit this fleet and its limits"
    if limit.kind == "objective":
        return "the objective asks for no more: it is not the worst served"
    return describe_dropped_demand(change) if change is not None else limit.kind.replace("_", " ")


def describe_dropped_demand(change: ChangeEffect) -> str:
    """A demand that a trial drops."""
    if change.what == "min_throughput_rps":
        return f"minimum {exact(change.old)}{THIN}req/s"
    if change.what in LIMITS_MS:
        return f"{LIMITS_MS[change.what]} {exact(change.old)}{THIN}ms"
    if change.what == "memory":
        return "memory"
    if change.what == "colocation":
        return f"{' and '.join(change.models)} on one GPU"
    if change.what == "max_tenants_per_slice":
        return f"at most {exact(change.old)} on a slice"
    if change.what == "link":
        return f"link, {exact(change.old)}{THIN}GB/s"
    return "cap at the demand"


def describe_change(change: ChangeEffect) -> str:
    """A change of the fleet or of a demand."""
    if change.what == "gpu":
        word = "One more" if (change.new or 0) > (change.old or 0) else "One fewer"
        return f"{word} {change.gpu_type} like {change.gpu_id}: {exact(change.old)} → {exact(change.new)}"
    if change.what == "link":
        return f"Link and network: {exact(change.old)} → {exact(change.new)}{THIN}GB/s"
    unit = "req/s" if change.what == "min_throughput_rps" else "ms"
    what = LIMITS_MS.get(change.what, "minimum")
    return f"{change.model}: {what} {exact(change.old)} → {exact(change.new)}{THIN}{unit}"


def chip_label(change: ChangeEffect) -> str:
    """A change and what it would bring, on a button."""
    if change.what == "gpu":
        word = "One more" if (change.new or 0) > (change.old or 0) else "One fewer"
        what = f"{word} {change.gpu_type}"
    else:
        what = describe_change(change)
    where = "" if change.level in (1, None) else f"level {change.level} "
    return f"{what}: {where}{short(change.value_before)} → {short(change.value_after)}"


def describe_effect(change: ChangeEffect, kind: str, of_tiers: int = 0) -> str:
    """The effect of the change on the objective, and how far that is proven."""
    if change.effect == "not_examined":
        return NOT_EXAMINED
    if change.effect == "infeasible":
        return "no plan at all, proven"
    if change.effect == "same":
        return "no change, proven"
    where = describe_level(change.level, kind, of_tiers)
    if change.effect == "open":
        low, high = sorted((change.value_after, change.bound_after), key=lambda x: (x is None, x or 0.0))
        span = f"between {short(low)} and {short(high)}" if high is not None else f"{short(low)} or better"
        if change.value_after is None:
            span = f"bound {short(change.bound_after)}"
        return f"{where}: {short(change.value_before)} → {span}, not proven"
    proof = "proven" if change.proven else f"bound {short(change.bound_after)}"
    return f"{where}: {short(change.value_before)} → {short(change.value_after)}, {proof}"


def describe_level(level: int | None, kind: str, of_tiers: int = 0) -> str:
    """A level of the objective in words; the first `of_tiers` levels are of tiers."""
    goal = GOALS[kind]
    if not goal.fair or level is None or level == 1:
        return f"{goal.label} of the highest tier" if of_tiers else goal.label
    if level <= of_tiers:
        return f"level {level} of the tiers"
    return f"level {level - of_tiers} from the worst served"


def describe_binding(binding: ModelBinding) -> str:
    """What holds the model back."""
    limits = [limit for limit in binding.limits if limit.binds]
    if limits:
        return "; ".join("the link binds" if each.kind == "link" else describe_limit(each) for each in limits)
    if any(limit.binds is None for limit in binding.limits):
        return "nothing proven"
    return "nothing on its own: only several changes at once would help"


def describe_unproven(binding: ModelBinding) -> str:
    """The limits of the model that are neither proven to bind nor not to bind."""
    return "; ".join(describe_limit(limit) for limit in binding.limits if limit.binds is None)


def describe_nonbinding(binding: ModelBinding) -> str:
    """The limits of the model that are proven not to bind."""
    return "; ".join(describe_limit(limit) for limit in binding.limits if limit.binds is False)


def describe_engine_reason(reason: EngineReason, kind: str, of_tiers: int = 0) -> str:
    """Why a model's engines are there, or not."""
    if reason.reason == "no_engine":
        return f"no engine: {reason.detail}"
    if reason.reason == "dominated":
        two = reason.tensor_parallel > 1
        return (
            "two engines on half the GPUs each give as much" if two else "the GPU without MIG gives as much"
        )
    if reason.trial is not None:
        return describe_effect(reason.trial, kind, of_tiers)
    return "as it is" if reason.reason == "in_plan" else NOT_EXAMINED


def describe_layout(layout: Sequence[str]) -> str:
    """Slices of a layout, equal ones counted."""
    if not layout:
        return "without MIG"
    counts = Counter(layout)
    return " + ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items())


def describe_reason(reason: LayoutReason, kind: str, of_tiers: int = 0) -> str:
    """Why no GPU has the layout."""
    if reason.reason == "no_use":
        return "no model can use any of its slices"
    if reason.reason == "dominated":
        swaps = Counter(pair for pair in reason.matching if pair[0] != pair[1])
        text = f"{describe_layout(reason.dominated_by)} serves every model at least as well"
        if swaps:
            text += f" ({'; '.join(f'{good} for {worse}' for worse, good in swaps)})"
        return text
    if reason.reason == "tried" and reason.trial is not None:
        if reason.trial.effect == "same":
            return "tried on one GPU: an equally good plan has it"
        return f"tried on one GPU: {describe_effect(reason.trial, kind, of_tiers)}"
    return NOT_EXAMINED


def describe_step(step: PriceStep) -> tuple[str, str, str, str]:
    """A step's name, value, bound and loss."""
    loss = "" if step.step == "relaxed" else percent(step.loss)
    return STEPS[step.step], short(step.value), short(step.bound), loss
