"""The cases of an evaluation: the planner over every combination, the baselines once a mix and regime."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from torchsplit_core.evaluation.mixes import MIXES
from torchsplit_core.values.evaluation.outcome import (
    CaseKey,
    ColocationSetting,
    EvaluationSettings,
    Planner,
    Regime,
    Sharing,
    Weighting,
)

REGIMES: tuple[Regime, ...] = ("any", "stock")
SHARINGS: tuple[Sharing, ...] = ("exclusive", "fractional")
COLOCATIONS: tuple[ColocationSetting, ...] = ("off", "routed", "hard")
REPORTED: tuple[ColocationSetting, ...] = ("off", "routed", "soft", "hard")
"""Evaluations of an earlier version have soft ones, which are reported unchanged."""

WEIGHTS: tuple[Weighting, ...] = ("equal", "favoured", "throughput")
FEWEST: Weighting = "fewest_gpus"
"""Planned for every mix without co-location: proving it takes a second, the greatest load takes minutes."""
RULES: tuple[Planner, ...] = ("whole_gpu", "uniform", "first_fit", "greedy")

QUICK_MIXES = ("four_cut", "S1")
QUICK_WEIGHTS: tuple[Weighting, ...] = ("equal", "throughput")

FULL = EvaluationSettings(quick=False, requests_per_model=12_000, replications=3, time_limit_s=5.0)
QUICK = EvaluationSettings(quick=True, requests_per_model=4_000, replications=2, time_limit_s=2.0)


def settings_of(quick: bool, time_limit_s: float | None = None) -> EvaluationSettings:
    """Settings of the whole or of the quick grid; each plan searches for `time_limit_s` if given."""
    settings = QUICK if quick else FULL
    return settings if time_limit_s is None else replace(settings, time_limit_s=time_limit_s)


def cases(quick: bool) -> tuple[CaseKey, ...]:
    """Every case in the order of the tables: by mix and regime, baselines before the planner."""
    keys: list[CaseKey] = []
    weights = QUICK_WEIGHTS if quick else WEIGHTS
    for mix, regime in product(QUICK_MIXES if quick else tuple(MIXES), REGIMES):
        keys += [CaseKey(mix, regime, "exclusive", "off", "equal", rule) for rule in RULES]
        keys += [
            CaseKey(mix, regime, sharing, colocation, weighting, "planner")
            for sharing, colocation, weighting in product(SHARINGS, COLOCATIONS, weights)
        ]
        keys += [CaseKey(mix, regime, sharing, "off", FEWEST, "planner") for sharing in SHARINGS]
    return tuple(keys)
