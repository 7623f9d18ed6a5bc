"""From one plan to the next: what stays, and what models lose, beside rewriting each changed GPU.

Random fleets of three GPU types (benchmarks/fleet_instances.py) are planned twice; between the plans every demand is
multiplied by 0.5 to 2. Rewriting: the GPUs of the same ids in their order, and of each whose instances differ all are
stopped and destroyed, then all made and started, as tools do that apply a whole layout. Both are reckoned with the same
times of steps, and the counts of transitions are proven. The worst model's loss is in model-seconds below its demand;
the ratio is rewriting over transition.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import replace

from benchmarks.fleet_instances import Family, fleet_instance
from benchmarks.planner_report import heading, parse_size, row
from torchsplit_core.planning import plan
from torchsplit_core.transition import ChangeTimes, plan_transition, state_of_plan, transition_fault
from torchsplit_core.transition.order import evaluate
from torchsplit_core.transition.parts import ChangePart
from torchsplit_core.transition.rates import Losses, Running, Throughputs
from torchsplit_core.values import (
    PlanModel,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    StepAction,
    TransitionStep,
    tenants_on,
)

PLAN_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[(8, 8), (16, 32), (32, 128)])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    columns = (
        "models × GPUs",
        "seeds",
        "tenants untouched",
        "same, rewriting",
        "GPUs touched",
        "same, rewriting",
    )
    print(heading((*columns, "worst model loses s", "same, rewriting", "ratio", "seconds, longest")))
    faults = []
    for models, gpus in options.sizes:
        cases = [_measure(models, gpus, seed) for seed in options.seeds]
        faults += [fault for case in cases for fault in case.pop("faults")]  # type: ignore[attr-defined]
        middle = {key: statistics.median(float(case[key]) for case in cases) for key in cases[0]}  # type: ignore[arg-type]
        ratios = sorted(float(c["rewrite_lost"]) / float(c["lost"]) for c in cases if c["lost"])  # type: ignore[arg-type]
        ratio = f"{statistics.median_low(ratios):.1f}" if ratios else "nothing lost"
        print(
            row(
                (
                    f"{models} × {gpus}",
                    len(cases),
                    f"{middle['untouched']:.0%}",
                    f"{middle['rewrite_untouched']:.0%}",
                    f"{middle['touched']:.0%}",
                    f"{middle['rewrite_touched']:.0%}",
                    f"{middle['lost']:.1f}",
                    f"{middle['rewrite_lost']:.1f}",
                    ratio,
                    f"{max(float(case['seconds']) for case in cases):.1f}",  # type: ignore[arg-type]
                )
            ),
            flush=True,
        )
    print(f"\nFaults: {len(faults)}", *faults, sep="\n- " if faults else "")
    return 1 if faults else 0


def _measure(models: int, gpus: int, seed: int) -> dict[str, object]:
    """One pair of plans."""
    request = fleet_instance(models, gpus, seed=seed, family=Family(), seconds=PLAN_S)
    draw = random.Random(seed)
    changed = replace(request, models=tuple(_with_demand(model, draw) for model in request.models))
    before, after = plan(request), plan(changed)
    state = state_of_plan(before)
    begun = time.perf_counter()
    outcome = plan_transition(after, state, request=changed)
    seconds = time.perf_counter() - begun
    fault = transition_fault(after, state, outcome)
    total = sum(1 for _ in tenants_on(after.gpus))
    parts, untouched = _rewriting(before, after)
    running = Running(tenant for _, _, tenant in tenants_on(before.gpus))
    every = [tenant for outcome in (before, after) for _, _, tenant in tenants_on(outcome.gpus)]
    losses = Losses(Throughputs(every, changed), {model.name: model.demand_rps for model in changed.models})
    return {
        "untouched": outcome.untouched_tenants / total,
        "rewrite_untouched": untouched / total,
        "touched": outcome.touched_gpus / gpus,
        "rewrite_touched": len(parts) / gpus,
        "lost": max(item.model_seconds_below_demand or 0.0 for item in outcome.during),
        "rewrite_lost": evaluate(parts, losses, running).value[0],
        "seconds": seconds,
        "faults": [] if fault is None else [f"{models} × {gpus}, seed {seed}: {fault}"],
    }


def _with_demand(model: PlanModel, draw: random.Random) -> PlanModel:
    return replace(model, demand_rps=model.demand_rps * draw.uniform(0.5, 2.0))


def _rewriting(before: PlanOutcome, after: PlanOutcome) -> tuple[list[ChangePart], int]:
    """The GPUs whose instances differ, each rewritten whole, and the tenants of all others."""
    parts, untouched = [], 0
    for old, new in zip(before.gpus, after.gpus, strict=True):
        if _content(old) == _content(new):
            untouched += sum(len(item.tenants) for item in new.slices)
            continue
        steps = [
            *(
                step
                for item in old.slices
                for step in (_step(old, "stop", item), _step(old, "destroy", item))
            ),
            *(_step(new, "create", item) for item in new.slices),
            *(_step(new, "start", item) for item in new.slices),
        ]
        steps = [step for step in steps if step.tenants or step.action in ("destroy", "create")]
        parts.append(ChangePart(old.id, old.type, tuple(steps)))
    return parts, untouched


def _content(gpu: PlannedGpu) -> frozenset[object]:
    return frozenset(
        (
            item.profile,
            item.start,
            tuple((t.model, t.variant, t.stage, t.batch_size, t.share) for t in item.tenants),
        )
        for item in gpu.slices
    )


def _step(gpu: PlannedGpu, action: StepAction, item: PlannedSlice) -> TransitionStep:
    tenants = item.tenants if action in ("stop", "start") else ()
    return TransitionStep(gpu.id, action, item.profile, item.start, tenants, ChangeTimes().seconds(action))


if __name__ == "__main__":
    raise SystemExit(main())
