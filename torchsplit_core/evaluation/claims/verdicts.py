"""The verdicts of the four claims from the cases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from torchsplit_core.evaluation.claims.comparison import (
    NO_WORSE_RULE,
    ComparedFigure,
    compare_figures,
    make_claim,
    make_part,
)
from torchsplit_core.evaluation.claims.fewest_gpus import fewest_parts
from torchsplit_core.evaluation.grid import FEWEST
from torchsplit_core.values.evaluation.outcome import (
    CaseFigures,
    CaseKey,
    Claim,
    ClaimPart,
    ClaimVerdict,
    Comparison,
    EvaluatedCase,
    ModelFigures,
)

CasesByKey = dict[CaseKey, EvaluatedCase]
Reading = Callable[[EvaluatedCase], ComparedFigure | None]

EITHER = (
    "Utilisation at full load and the fewest GPUs each say the claim: where one of them cannot be said, the other "
    "decides; where both can, the weaker. "
)
UNTESTED = "Untested on hardware: plans are verified and simulated, none of them ran on an A100."


def judge_claims(cases: Sequence[EvaluatedCase]) -> tuple[Claim, ...]:
    """The four claims. A case without figures is in no comparison, and is counted as such."""
    known = {case.key: case for case in cases}
    return (_utilisation(known), _fairness(known), _traffic(known), _deployable(known))


def _utilisation(known: CasesByKey) -> Claim:
    every = _pairs(known, "sharing", "fractional", "exclusive")
    # What the fewest GPUs carry beyond the demands is accidental.
    pairs = [(case, other) for case, other in every if case.key.weights != FEWEST]
    fewest = fewest_parts([(case, other) for case, other in every if case.key.weights == FEWEST])
    return make_claim(
        1,
        "Higher GPU utilization via shared MIG partitions and fractional allocation compared to exclusive placement.",
        "Utilisation is the share of the fleet's compute slices at work when every demand grows to 0.9 of what the "
        "plan can carry of all of them together. Every exclusive plan is a shared one too: a shared plan that carries "
        "less is one whose search did not end. What is open is told by the plan's gap, which bounds what it can carry; "
        "taking it as a gap of utilisation too is a heuristic: the work at that load is about in proportion to it. "
        f"{EITHER if fewest else ''}{UNTESTED}",
        (
            make_part(
                "Utilisation, shared against exclusive",
                "share of compute slices at work at 0.9 of the plan's own common load",
                _compare(pairs, _utilisation_of),
            ),
            *fewest,
            make_part(
                "What can be served of all demands together",
                "common load: the least throughput / demand",
                _compare(pairs, _common_load_of),
                counts_for_claim=False,
            ),
            make_part(
                "95th percentile of the response, queues included",
                "ms, the mean over the models that both serve stably at the demands; less is better",
                _responses(pairs),
                counts_for_claim=False,
                words="A share s of a slice makes every batch take 1/s as long.",
            ),
        ),
        either_says_it=True,
    )


def _fairness(known: CasesByKey) -> Claim:
    by_sum = [
        (case, other)
        for case, other in _pairs(known, "weights", "equal", "throughput")
        if case.key.planner == "planner"
    ]
    fair = [case for case in known.values() if case.key.weights == "equal" and case.key.planner == "planner"]
    figures = [case.figures for case in fair if case.figures is not None]
    starving = [case.key.name for case in fair if case.figures is not None and case.figures.starved]
    verdict: ClaimVerdict = "cannot be said" if not figures else "not supported" if starving else "supported"
    some = f" A model without any throughput: {', '.join(starving)}." if starving else ""
    return make_claim(
        2,
        "Improved fairness across heterogeneous models with leximin objective (no model starves).",
        f"Leximin with equal weights beside the greatest sum of requests/s, on the same fleet. {UNTESTED}",
        (
            ClaimPart(
                "No model starves",
                "models with a throughput of 0, under leximin",
                "Supported where no leximin plan leaves a model without throughput.",
                verdict,
                f"{len(figures)} leximin plans, {len(starving)} with a model that gets nothing.{some}",
            ),
            make_part(
                "Jain's index, leximin against the greatest sum",
                "Jain's index of throughput / demand, 1 where all fare alike",
                _compare(by_sum, _jain_of),
            ),
            make_part(
                "The worst-served model against the rules'",
                "common load: the least throughput / demand",
                _compare(_against_rules(known), _common_load_of),
                counts_for_claim=False,
                words="Plan and rule answer the same request, with exclusive slices.",
            ),
            make_part(
                "What fairness costs in requests/s",
                "sum of throughputs; more is better",
                _compare(by_sum, _total_of),
                counts_for_claim=False,
            ),
        ),
    )


def _traffic(known: CasesByKey) -> Claim:
    pairs = [
        *_pairs(known, "colocation", "routed", "off"),
        # Evaluations of an earlier version have soft co-locations.
        *_pairs(known, "colocation", "soft", "off"),
        *_pairs(known, "colocation", "hard", "off"),
    ]
    return make_claim(
        3,
        "Reduced cross-GPU traffic and latency for models with large intermediate tensors when co-location is "
        "enabled.",
        "Bytes leave a GPU where the plan leaves no server on it to hand them to. Plan and simulation charge a "
        "transfer across a cut the same on one GPU as between two: MIG slices of one GPU have no path of their own "
        "between them. So a shorter response could only come from another layout. "
        f"{UNTESTED}",
        (
            make_part(
                "Bytes that leave their GPU, co-location on against off",
                "bytes/s of the tied tensors; less is better",
                _compare(pairs, _crossing_of, less=True),
            ),
            make_part(
                "95th percentile of the response, queues included",
                "ms, the mean over the models that both serve stably at the demands; less is better",
                _responses(pairs),
            ),
            make_part(
                "What can be served of all demands together",
                "common load: the least throughput / demand",
                _compare(pairs, _common_load_of),
                rule=NO_WORSE_RULE,
                counts_for_claim=False,
            ),
        ),
    )


def _deployable(known: CasesByKey) -> Claim:
    plans = [case for case in known.values() if case.key.planner == "planner"]
    made = [case.figures for case in plans if case.figures is not None]
    over = [figures for figures in made if figures.memory_share is None or figures.memory_share > 1 + 1e-9]
    bad = [figures for figures in made if not figures.deployable]
    clean = sum(figures.stranded_share < 1e-9 for figures in made)
    verdict: ClaimVerdict = "cannot be said" if not made else "not supported" if over or bad else "supported"
    return make_claim(
        4,
        "Deployable plans that respect per-slice memory and chosen MIG layouts with minimal fragmentation.",
        "Every plan was checked from its request alone, without the solver: layouts that the driver takes at those "
        f"starts, memory, limits. Memory is estimated. {UNTESTED}",
        (
            ClaimPart(
                "Layouts, memory and files",
                "the fullest slice's memory; files of mig-parted and nvidia-smi",
                "Supported where every plan passed the check, no slice is over its memory and the files can be "
                "written.",
                verdict,
                f"{len(made)} plans passed the check; the fullest slice has {_fullest(made)} of its memory taken; "
                f"files for {len(made) - len(bad)}. {len(plans) - len(made)} cases found no plan in their time.",
            ),
            make_part(
                "Fragmentation against the rules'",
                "share of the compute slices of GPUs in use that no model has; less is better",
                _compare(_against_rules(known), _stranded_of, less=True),
                rule=NO_WORSE_RULE,
                words=f"{clean} of {len(made)} plans strand nothing, the least there is; no objective asks for it.",
            ),
        ),
    )


def _fullest(made: Sequence[CaseFigures]) -> str:
    known = [figures.memory_share for figures in made if figures.memory_share is not None]
    return f"{max(known):.0%}" if known else "n/a"


def _pairs(
    known: CasesByKey, dimension: str, tested: str, reference: str
) -> list[tuple[EvaluatedCase, EvaluatedCase]]:
    """The planner's cases that differ only in this dimension, both with figures."""
    pairs = []
    for key, case in known.items():
        if getattr(key, dimension) != tested or key.planner != "planner":
            continue
        other = known.get(CaseKey(**(dataclasses.asdict(key) | {dimension: reference})))
        if other is not None and case.figures is not None and other.figures is not None:
            pairs.append((case, other))
    return pairs


def _against_rules(known: CasesByKey) -> list[tuple[EvaluatedCase, EvaluatedCase]]:
    """The planner's exclusive plan beside each baseline's plan of the same request."""
    pairs = []
    for key, other in known.items():
        case = known.get(dataclasses.replace(key, planner="planner"))
        if key.planner == "planner" or case is None or case.figures is None or other.figures is None:
            continue
        pairs.append((case, other))
    return pairs


def _compare(
    pairs: Sequence[tuple[EvaluatedCase, EvaluatedCase]], reading: Reading, *, less: bool = False
) -> tuple[Comparison, ...]:
    comparisons = []
    for case, other in pairs:
        tested, reference = reading(case), reading(other)
        if tested is not None and reference is not None:
            comparisons.append(
                compare_figures(f"{case.key.name} / {_differs(case, other)}", tested, reference, less=less)
            )
    return tuple(comparisons)


def _differs(case: EvaluatedCase, other: EvaluatedCase) -> str:
    """The other case's values where the two differ."""
    names = CaseKey.__dataclass_fields__
    return " ".join(
        getattr(other.key, name) for name in names if getattr(other.key, name) != getattr(case.key, name)
    )


def _utilisation_of(case: EvaluatedCase) -> ComparedFigure | None:
    figures = case.figures
    if figures is None or figures.utilisation_full is None:
        return None
    low, high = figures.at_low, figures.at_high
    return ComparedFigure(
        figures.utilisation_full,
        low.utilisation_full if low else None,
        high.utilisation_full if high else None,
        # A heuristic, as the claim says: the gap is of the common load, the plan's objective.
        _gap(case),
    )


def _common_load_of(case: EvaluatedCase) -> ComparedFigure | None:
    figures = case.figures
    if figures is None or case.key.weights != "equal":
        # With other weights it is not the plan's objective.
        return None
    low, high = figures.at_low, figures.at_high
    return ComparedFigure(
        figures.common_load,
        low.common_load if low else None,
        high.common_load if high else None,
        _gap(case),
    )


def _gap(case: EvaluatedCase) -> float:
    """0 for a baseline, which has no search; 1 if the planner has no bound."""
    if case.key.planner != "planner":
        return 0.0
    return 1.0 if case.gap is None else case.gap


def _total_of(case: EvaluatedCase) -> ComparedFigure | None:
    return None if case.figures is None else ComparedFigure(case.figures.total_rps)


def _jain_of(case: EvaluatedCase) -> ComparedFigure | None:
    return None if case.figures is None else ComparedFigure(case.figures.jain)


def _crossing_of(case: EvaluatedCase) -> ComparedFigure | None:
    figures = case.figures
    if figures is None or figures.cross_gpu_bytes_per_s is None:
        return None
    return ComparedFigure(figures.cross_gpu_bytes_per_s)


def _stranded_of(case: EvaluatedCase) -> ComparedFigure | None:
    return None if case.figures is None else ComparedFigure(case.figures.stranded_share)


def _responses(pairs: Sequence[tuple[EvaluatedCase, EvaluatedCase]]) -> tuple[Comparison, ...]:
    """Mean p95 over the models that are stable in both cases."""
    comparisons = []
    for case, other in pairs:
        other_models = {model.name: model for model in other.models}
        both = [
            (model, other_models[model.name])
            for model in case.models
            if model.p95_ms is not None and other_models[model.name].p95_ms is not None
        ]
        if both:
            tested, reference = (_mean_p95([pair[side] for pair in both]) for side in (0, 1))
            label = f"{case.key.name} / {_differs(case, other)}"
            comparisons.append(compare_figures(label, tested, reference, less=True))
    return tuple(comparisons)


def _mean_p95(models: Sequence[ModelFigures]) -> ComparedFigure:
    """Of models with independent draws, so the errors of their percentiles are independent too."""
    widths = [model.p95_ci95_ms or 0.0 for model in models]
    return ComparedFigure(
        sum(model.p95_ms or 0.0 for model in models) / len(models),
        noise=math.sqrt(sum(width**2 for width in widths)) / len(models),
    )
