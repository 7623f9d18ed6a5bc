"""The evaluation: every case planned and simulated, those that are known taken over, then the claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from torchsplit_core import __version__
from torchsplit_core.evaluation.claims.judge import judged
from torchsplit_core.evaluation.figures import evaluated, without_plan
from torchsplit_core.evaluation.grid import cases, settings_of
from torchsplit_core.evaluation.mixes import case_request, mix
from torchsplit_core.planning.baselines.run import Baseline, baselines
from torchsplit_core.planning.manual.what_if import better_start
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.workers import plan_each
from torchsplit_core.values import PlanOutcome, PlanRequest, Progress, ignore_progress
from torchsplit_core.values.evaluation.outcome import (
    CaseKey,
    EvaluatedCase,
    EvaluationOutcome,
    EvaluationSettings,
)

Keep = Callable[[EvaluationOutcome], None]


def evaluate(
    *,
    quick: bool = False,
    keys: Sequence[CaseKey] | None = None,
    settings: EvaluationSettings | None = None,
    known: EvaluationOutcome | None = None,
    keep: Keep = lambda _: None,
    progress: Progress = ignore_progress,
) -> EvaluationOutcome:
    """The outcome of the whole grid, of the `quick` one, or of these `keys`.

    Cases of `known` that answer the same requests with the same settings are taken over. `keep` gets the outcome so
    far at the start and after every case.
    """
    settings = settings or settings_of(quick)
    wanted = tuple(keys) if keys is not None else cases(quick)
    requests = {key: case_request(key, settings.time_limit_s) for key in wanted}
    found = _taken_over(requests, settings, known)
    taken, began = len(found), time.perf_counter()

    def outcome(*, complete: bool) -> EvaluationOutcome:
        done = tuple(found[key] for key in wanted if key in found)
        made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        spent: dict[str, str | float] = {
            "seconds": time.perf_counter() - began, "taken_over": taken, "made": made, "version": __version__,
        }  # fmt: skip
        told = tuple(mix(name).told for name in dict.fromkeys(key.mix for key in wanted))
        claims = judged(done) if complete else ()
        return EvaluationOutcome(settings, told, done, claims, complete, spent)

    def heard(case: EvaluatedCase) -> None:
        found[case.key] = case
        keep(outcome(complete=False))
        progress(len(found) / len(wanted), f"{len(found)} of {len(wanted)} cases")

    # What cannot be kept is told before time is spent on it.
    keep(outcome(complete=False))
    progress(taken / len(wanted), f"{taken} of {len(wanted)} cases")
    _rules(
        [key for key in wanted if key not in found and key.planner != "planner"], requests, settings, heard
    )
    _plans([key for key in wanted if key not in found], requests, settings, heard)
    last = outcome(complete=True)
    keep(last)
    return last


def plans_to_search(*, settings: EvaluationSettings, known: EvaluationOutcome | None = None) -> int:
    """How many plans `evaluate` searches for with these settings: the planner's cases that `known` does not answer."""
    asked = [key for key in cases(settings.quick) if key.planner == "planner"]
    if known is None or known.settings != settings:
        return len(asked)
    before = {case.key: case.request_sha256 for case in known.cases}
    return sum(before.get(key) != _request_sha256(key, settings.time_limit_s) for key in asked)


@lru_cache(maxsize=1024)
def _request_sha256(key: CaseKey, time_limit_s: float) -> str:
    """Kept: a page asks for those of all cases whenever it is drawn."""
    return request_hash(case_request(key, time_limit_s))


def _taken_over(
    requests: Mapping[CaseKey, PlanRequest], settings: EvaluationSettings, known: EvaluationOutcome | None
) -> dict[CaseKey, EvaluatedCase]:
    if known is None or known.settings != settings:
        return {}
    before = {case.key: case for case in known.cases}
    return {
        key: before[key]
        for key, request in requests.items()
        if key in before and before[key].request_sha256 == request_hash(request)
    }


def _rules(
    keys: Sequence[CaseKey],
    requests: Mapping[CaseKey, PlanRequest],
    settings: EvaluationSettings,
    hear: Callable[[EvaluatedCase], None],
) -> None:
    """The rules' cases: all rules answer one request at once."""
    answers: dict[str, tuple[Baseline, ...]] = {}
    for key in keys:
        request = requests[key]
        sha256 = request_hash(request)
        if sha256 not in answers:
            answers[sha256] = baselines(request)
        (one,) = (one for one in answers[sha256] if one.name == key.planner)
        if one.outcome is None:
            hear(without_plan(key, sha256, one.why_not))
        else:
            hear(evaluated(key, request, one.outcome, mix(key.mix).pairs, settings))


def _plans(
    keys: Sequence[CaseKey],
    requests: Mapping[CaseKey, PlanRequest],
    settings: EvaluationSettings,
    hear: Callable[[EvaluatedCase], None],
) -> None:
    """The planner's cases, two planned at a time while the last one is simulated here."""

    plans: dict[CaseKey, PlanOutcome] = {}
    # The stricter first, so that what they reach is known where it is allowed too.
    ordered = sorted(keys, key=_strictness)

    def heard(position: int, plan: PlanOutcome) -> None:
        key = ordered[position]
        plans[key] = with_stricter(key, requests[key], plan, plans)
        hear(evaluated(key, requests[key], plans[key], mix(key.mix).pairs, settings))

    plan_each([requests[key] for key in ordered], settings.time_limit_s, heard)
    for key in filter(plans.__contains__, ordered):
        # Two are planned at a time: one that is stricter may have come later.
        better = with_stricter(key, requests[key], plans[key], plans)
        if better != plans[key]:
            plans[key] = better
            hear(evaluated(key, requests[key], better, mix(key.mix).pairs, settings))


REGIME_ORDER, SHARING_ORDER, TYING_ORDER = (
    ("stock", "any"),
    ("exclusive", "fractional"),
    ("hard", "routed", "soft", "off"),
)
"""From strict to free: every plan of a stricter case is one of a freer case."""


def with_stricter(
    key: CaseKey, request: PlanRequest, plan: PlanOutcome, plans: Mapping[CaseKey, PlanOutcome]
) -> PlanOutcome:
    """The plan of a case, or a better one that was found for a stricter case of the same mix and weights."""
    if plan.status not in ("feasible", "timeout"):
        return plan
    for other, known in plans.items():
        if _is_stricter(other, key):
            plan = better_start(request, plan, known)
    return plan


def _is_stricter(one: CaseKey, other: CaseKey) -> bool:
    same = (one.mix, one.weights, one.planner) == (other.mix, other.weights, other.planner)
    places = list(zip(_places(one), _places(other), strict=True))
    return same and one != other and all(first <= second for first, second in places)


def _strictness(key: CaseKey) -> int:
    return sum(_places(key))


def _places(key: CaseKey) -> tuple[int, int, int]:
    return (
        REGIME_ORDER.index(key.regime), SHARING_ORDER.index(key.sharing), TYING_ORDER.index(key.colocation)
    )  # fmt: skip
