"""The evaluation: every case is planned and simulated, known ones are reused, then the claims are judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from torchsplit_core import __version__
from torchsplit_core.evaluation.case_metrics import case_without_plan, evaluate_case
from torchsplit_core.evaluation.claims.verdicts import judge_claims
from torchsplit_core.evaluation.grid import cases, settings_of
from torchsplit_core.evaluation.mixes import case_request, mix
from torchsplit_core.planning.baselines.baseline_plans import Baseline, build_baselines
from torchsplit_core.planning.manual.what_if import better_start
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.workers import plan_all
from torchsplit_core.values import PlanOutcome, PlanRequest, Progress, ignore_progress
from torchsplit_core.values.evaluation.outcome import (
    CaseKey,
    EvaluatedCase,
    EvaluationOutcome,
    EvaluationSettings,
)

SaveOutcome = Callable[[EvaluationOutcome], None]


def evaluate(
    *,
    quick: bool = False,
    keys: Sequence[CaseKey] | None = None,
    settings: EvaluationSettings | None = None,
    known: EvaluationOutcome | None = None,
    keep: SaveOutcome = lambda _: None,
    progress: Progress = ignore_progress,
) -> EvaluationOutcome:
    """The outcome of the whole grid, of the `quick` one, or of these `keys`.

    Cases of `known` with the same requests and settings are reused. `keep` gets the outcome so far at the start and
    after every case.
    """
    settings = settings or settings_of(quick)
    wanted = tuple(keys) if keys is not None else cases(quick)
    requests = {key: case_request(key, settings.time_limit_s) for key in wanted}
    evaluated_cases = _reusable_cases(requests, settings, known)
    reused, began = len(evaluated_cases), time.perf_counter()

    def outcome(*, complete: bool) -> EvaluationOutcome:
        done = tuple(evaluated_cases[key] for key in wanted if key in evaluated_cases)
        made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        spent: dict[str, str | float] = {
            "seconds": time.perf_counter() - began, "taken_over": reused, "made": made, "version": __version__,
        }  # fmt: skip
        descriptions = tuple(mix(name).description for name in dict.fromkeys(key.mix for key in wanted))
        claims = judge_claims(done) if complete else ()
        return EvaluationOutcome(settings, descriptions, done, claims, complete, spent)

    def record(case: EvaluatedCase) -> None:
        evaluated_cases[case.key] = case
        keep(outcome(complete=False))
        progress(len(evaluated_cases) / len(wanted), f"{len(evaluated_cases)} of {len(wanted)} cases")

    # A save that fails is reported before time is spent.
    keep(outcome(complete=False))
    progress(reused / len(wanted), f"{reused} of {len(wanted)} cases")
    _evaluate_rules(
        [key for key in wanted if key not in evaluated_cases and key.planner != "planner"],
        requests,
        settings,
        record,
    )
    _evaluate_plans([key for key in wanted if key not in evaluated_cases], requests, settings, record)
    last = outcome(complete=True)
    keep(last)
    return last


def plans_to_search(*, settings: EvaluationSettings, known: EvaluationOutcome | None = None) -> int:
    """Number of plans that `evaluate` searches with these settings: the planner's cases that `known` lacks."""
    searched = [key for key in cases(settings.quick) if key.planner == "planner"]
    if known is None or known.settings != settings:
        return len(searched)
    before = {case.key: case.request_sha256 for case in known.cases}
    return sum(before.get(key) != _request_sha256(key, settings.time_limit_s) for key in searched)


@lru_cache(maxsize=1024)
def _request_sha256(key: CaseKey, time_limit_s: float) -> str:
    """Cached: a page needs those of all cases whenever it is drawn."""
    return request_hash(case_request(key, time_limit_s))


def _reusable_cases(
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


def _evaluate_rules(
    keys: Sequence[CaseKey],
    requests: Mapping[CaseKey, PlanRequest],
    settings: EvaluationSettings,
    on_case: Callable[[EvaluatedCase], None],
) -> None:
    """The baselines' cases: all baselines of one request at once."""
    answers: dict[str, tuple[Baseline, ...]] = {}
    for key in keys:
        request = requests[key]
        sha256 = request_hash(request)
        if sha256 not in answers:
            answers[sha256] = build_baselines(request)
        (baseline,) = (baseline for baseline in answers[sha256] if baseline.name == key.planner)
        if baseline.outcome is None:
            on_case(case_without_plan(key, sha256, baseline.reason))
        else:
            on_case(evaluate_case(key, request, baseline.outcome, mix(key.mix).pairs, settings))


def _evaluate_plans(
    keys: Sequence[CaseKey],
    requests: Mapping[CaseKey, PlanRequest],
    settings: EvaluationSettings,
    on_case: Callable[[EvaluatedCase], None],
) -> None:
    """The planner's cases, two planned at a time while the last one is simulated here."""

    plans: dict[CaseKey, PlanOutcome] = {}
    # The stricter first, so that their values are known where they are allowed too.
    ordered = sorted(keys, key=_strictness)

    def record(position: int, plan: PlanOutcome) -> None:
        key = ordered[position]
        plans[key] = with_stricter(key, requests[key], plan, plans)
        on_case(evaluate_case(key, requests[key], plans[key], mix(key.mix).pairs, settings))

    plan_all([requests[key] for key in ordered], settings.time_limit_s, record)
    for key in filter(plans.__contains__, ordered):
        # Two are planned at a time, so the stricter one may have finished later.
        better = with_stricter(key, requests[key], plans[key], plans)
        if better != plans[key]:
            plans[key] = better
            on_case(evaluate_case(key, requests[key], better, mix(key.mix).pairs, settings))


REGIME_ORDER, SHARING_ORDER, TYING_ORDER = (
    ("stock", "any"),
    ("exclusive", "fractional"),
    ("hard", "routed", "soft", "off"),
)
"""From strict to free: every plan of a stricter case is a plan of a freer one."""


def with_stricter(
    key: CaseKey, request: PlanRequest, plan: PlanOutcome, plans: Mapping[CaseKey, PlanOutcome]
) -> PlanOutcome:
    """The plan of a case, or a better one of a stricter case of the same mix and weights."""
    if plan.status not in ("feasible", "timeout"):
        return plan
    for other, known in plans.items():
        if _is_stricter(other, key):
            plan = better_start(request, plan, known)
    return plan


def _is_stricter(key: CaseKey, reference: CaseKey) -> bool:
    same = (key.mix, key.weights, key.planner) == (reference.mix, reference.weights, reference.planner)
    ranks = list(zip(_strictness_ranks(key), _strictness_ranks(reference), strict=True))
    return same and key != reference and all(first <= second for first, second in ranks)


def _strictness(key: CaseKey) -> int:
    return sum(_strictness_ranks(key))


def _strictness_ranks(key: CaseKey) -> tuple[int, int, int]:
    return (
        REGIME_ORDER.index(key.regime), SHARING_ORDER.index(key.sharing), TYING_ORDER.index(key.colocation)
    )  # fmt: skip
