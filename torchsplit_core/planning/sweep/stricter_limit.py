"""Points of a sweep over touched GPUs: a plan that touches few GPUs also stands where more may be touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.planning.manual.what_if import better_start
from torchsplit_core.values import PlanOutcome, PlanRequest


def stricter_plans(
    requests: Mapping[float, PlanRequest], outcomes: Mapping[float, PlanOutcome]
) -> dict[float, PlanOutcome]:
    """By limit the outcomes that give way to the plan of the next stricter limit, since their search ended with a worse
    one or with none; each keeps the bound of its own search. So no point is worse than a stricter one."""
    better: dict[float, PlanOutcome] = {}
    best: PlanOutcome | None = None
    for limit in sorted(outcomes):
        outcome = outcomes[limit]
        if best is not None and outcome.status in ("feasible", "timeout"):
            start = better_start(requests[limit], outcome, best)
            if start is not outcome:
                outcome = replace(start, touched_gpus=best.touched_gpus, statistics=outcome.statistics)
                better[limit] = outcome
        best = outcome if outcome.gpus else best
    return better
