"""How much of a plan's explanation is settled after 20 s, over seeds of mixed fleets.

Requests: the published mix S3 on five A100-80GB, and benchmarks/fleet_instances.py. A question is a change of the
request, a limit of a model, or a layout that no GPU has. It is settled where its effect is proven; otherwise it has a
plan on one side and a proven bound on the other, or is without one of them. "Ten most telling": questions whose effect
is largest as far as is known; the width between plan and bound, relative to the value before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from benchmarks.planner_report import answer_of_child, heading, row
from torchsplit_core.values import ChangeEffect, PlanExplanation, PlanRequest

FAMILIES = {
    "S3, five A100": (11, 5, 30.0, None),
    "three types": (11, 5, 30.0, Family()),
    "five types, limits": (11, 10, 30.0, Family(types=FIVE_TYPES, limits=True)),
    "least cost": (8, 8, 30.0, Family(kind="min_gpus", costs=True, minima=0.3)),
    "five types, 64 models": (64, 256, 30.0, Family(types=FIVE_TYPES, limits=True)),
}
"""Models, GPUs, seconds of the plan, and what the requests have (None: the published mix), by name."""

SEARCH_SHARE, GRACE_S, MOST_TELLING = 0.95, 120.0, 10


def build_request(name: str, seed: int) -> PlanRequest:
    """The family's request of a seed."""
    from torchsplit_core.profiling.library import mix_request

    models, gpus, seconds, family = FAMILIES[name]
    if family is None:
        return mix_request("S3", gpus)
    return fleet_instance(models, gpus, seed=seed, family=family, seconds=SEARCH_SHARE * seconds)


def questions(explanation: PlanExplanation) -> Iterator[tuple[bool, ChangeEffect | None]]:
    """Whether each question is settled, and its evidence if it has some."""
    for change in explanation.changes:
        yield change.effect not in ("open", "not_examined"), change
    for model in explanation.models:
        yield from ((limit.binds is not None, limit.change) for limit in model.limits)
    for reason in explanation.layouts:
        if reason.trial is not None:
            yield reason.trial.effect != "open", reason.trial
        else:
            yield reason.reason != "not_examined", None


def has_bounds(change: ChangeEffect | None) -> bool:
    """Whether a plan and a proven bound are known."""
    return change is not None and change.value_after is not None and change.bound_after is not None


def effect_of(change: ChangeEffect) -> float:
    """The largest effect at the first level that is possible, as a share of the value before."""
    before, figures = change.value_before, (change.value_after, change.bound_after)
    if change.level != 1 or not before:
        return 0.0
    return max((abs(figure - before) / before for figure in figures if figure is not None), default=0.0)


def width_of(change: ChangeEffect) -> float | None:
    """The distance of plan and bound as a share of the value before; None without one of them."""
    if change.effect == "infeasible":
        return 0.0
    if change.value_after is None or change.bound_after is None or not change.value_before:
        return None
    return abs(change.bound_after - change.value_after) / change.value_before


def measure(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Plan and explain one request in this process."""
    from torchsplit_core.planning import plan
    from torchsplit_core.planning.explanation.explain import explain_plan

    request = build_request(name, seed)
    outcome = plan(request, reasons=False)
    begun = time.perf_counter()
    explanation = explain_plan(request, outcome, begun + seconds)
    wall_s = time.perf_counter() - begun
    if explanation is None:
        return {"status": outcome.status}
    asked = list(questions(explanation))
    changes = {change for _, change in asked if change is not None}
    telling = sorted(changes, key=effect_of, reverse=True)[:MOST_TELLING]
    return {
        "status": outcome.status,
        "wall_s": wall_s,
        "count": len(asked),
        "settled": sum(settled for settled, _ in asked) / len(asked),
        "bounded": sum(settled or has_bounds(change) for settled, change in asked) / len(asked),
        "widths": [width_of(change) for change in telling],
    }


def in_child(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """`measure` in a process of its own."""
    arguments = ["--child", name, "--seeds", str(seed), "--seconds", str(seconds)]
    return answer_of_child("plan_explanation", arguments, FAMILIES[name][2] + seconds + GRACE_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of each explanation")
    parser.add_argument("--child", metavar="NAME", help="explain one plan in this process and print JSON")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.seeds[0], options.seconds)))
        return 0
    columns = ("family", "models × GPUs", "seeds", "questions, median", "settled, median", "worst")
    print(
        heading(
            (
                *columns,
                "settled or bounded, worst",
                "ten most telling: width, median",
                "worst",
                "longest wall s",
            )
        )
    )
    faults = []
    for name in options.families:
        seeds = options.seeds if FAMILIES[name][3] is not None else options.seeds[:1]
        # One at a time: an explanation plans on two cores.
        answers = [in_child(name, seed, options.seconds) for seed in seeds]
        explained = [answer for answer in answers if "count" in answer]
        faults += [f"{name}: {answer['status']}" for answer in answers if "count" not in answer]
        if not explained:
            continue
        models, gpus, *_ = FAMILIES[name]
        widths = [width for answer in explained for width in answer["widths"]]
        known = [width for width in widths if width is not None]
        print(
            row(
                (
                    name,
                    f"{models} × {gpus}",
                    len(explained),
                    f"{statistics.median(answer['count'] for answer in explained):g}",
                    f"{statistics.median(answer['settled'] for answer in explained):.0%}",
                    f"{min(answer['settled'] for answer in explained):.0%}",
                    f"{min(answer['bounded'] for answer in explained):.0%}",
                    f"{statistics.median(known):.2%}" if known else "n/a",
                    f"{max(known):.2%}" if len(known) == len(widths) else "n/a",
                    f"{max(answer['wall_s'] for answer in explained):.1f}",
                )
            ),
            flush=True,
        )
    print(f"\nPlans that are not explained: {len(faults)}", *faults, sep="\n- " if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
