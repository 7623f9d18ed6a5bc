"""The fewest GPUs for a share of demand samples, and the largest share on a fleet, over families and seeds.

Models and fleets: benchmarks/fleet_instances.py. Samples are lognormal around the demands, tied by a Gaussian copula;
a negative correlation is one between two halves of the models. Demands are scaled to a load: their sum in whole GPUs,
over the fleet. Wall seconds are those of plan(), its independent check included; "peak" are
the GPUs that hold every sample's largest entry of each model at once. Every plan is checked again, and so is the share
that it holds of samples that it did not see: as many again of the same draw.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.fleet_instances import FIVE_TYPES, THREE_TYPES, Family, fleet_instance
from benchmarks.planner_report import answer_of_child, gap_text, heading, row
from torchsplit_core.values import Objective, ObjectiveKind, PlanRequest

ONE_TYPE = (("A100-80GB", 1.0),)
SEARCH_SHARE, GRACE_S = 0.95, 120.0


@dataclass(frozen=True)
class SampleFamily:
    """What the samples and the objective of a family are. `share` 0: the largest share is sought.

    `load`: the models' mean demands in whole GPUs, as a part of the fleet.
    """

    types: tuple[tuple[str, float], ...] = THREE_TYPES
    correlation: float = 0.3
    cv: float = 0.4
    share: float = 0.95
    load: float = 0.5
    sharing: str = "exclusive"


FAMILIES = {
    "three types, 95 %": SampleFamily(),
    "five types, 95 %": SampleFamily(FIVE_TYPES, load=0.6),
    "one type, 99 %": SampleFamily(ONE_TYPE, share=0.99, load=0.4),
    "together, 99.9 %": SampleFamily(correlation=0.9, share=0.999, load=0.35),
    "against, 95 %": SampleFamily(FIVE_TYPES, correlation=-0.3, load=0.6),
    "bursty, 80 %": SampleFamily(correlation=0.0, cv=0.8, share=0.8, load=0.35),
    "largest share, three types": SampleFamily(share=0.0, load=0.65),
    "largest share, five types": SampleFamily(FIVE_TYPES, correlation=0.0, cv=0.8, share=0.0, load=0.45),
    "largest share, against": SampleFamily(correlation=-0.3, share=0.0, load=0.65),
    "largest share, together": SampleFamily(FIVE_TYPES, correlation=0.9, cv=0.6, share=0.0, load=0.7),
    "shared slices, 95 %": SampleFamily(sharing="fractional"),
}

Size = tuple[int, int, int, float]
"""Models, GPUs, samples, seconds."""

SIZE: Size = (16, 64, 1440, 30.0)


def load_of(request: PlanRequest) -> float:
    """The models' demands in whole GPUs of the fleet's mean rate, as a part of the fleet."""
    load = 0.0
    for spec in request.models:
        rates = {
            entry.type: max((p.throughput_rps for p in spec.points if p.gpu_type == entry.type), default=0.0)
            for entry in request.gpus
        }
        load += spec.demand_rps / sum(entry.count * rates[entry.type] for entry in request.gpus)
    return load


def drawn(family: SampleFamily, models: int, count: int, seed: int) -> np.ndarray:
    """Factors of the demands, (sample, model), of mean 1."""
    generator = np.random.default_rng(seed)
    tied = abs(family.correlation)
    sign = np.ones(models)
    if family.correlation < 0:
        sign[1::2] = -1.0
    normal = np.sqrt(tied) * np.outer(generator.standard_normal(count), sign)
    normal += np.sqrt(1 - tied) * generator.standard_normal((count, models))
    spread = np.sqrt(np.log1p(family.cv**2))
    factors: np.ndarray = np.exp(spread * normal - spread**2 / 2)
    return factors


def sampled_instance(family: SampleFamily, size: Size, seed: int) -> tuple[PlanRequest, PlanRequest]:
    """The request, and the same with samples that planning does not see."""
    models, gpus, count, seconds = size
    request = fleet_instance(
        models,
        gpus,
        seed=seed,
        family=Family(family.types, kind="min_gpus", sharing=family.sharing),  # type: ignore[arg-type]
        seconds=SEARCH_SHARE * seconds,
    )
    kind: ObjectiveKind = "min_gpus" if family.share else "attainment"
    request = replace(request, objective=Objective(kind, attainment=family.share or None))
    factors = family.load / load_of(request) * drawn(family, models, 2 * count, seed)

    def of(rows: np.ndarray) -> PlanRequest:
        specs = (
            replace(spec, demand_samples=tuple((spec.demand_rps * rows[:, number]).tolist()))
            for number, spec in enumerate(request.models)
        )
        return replace(request, models=tuple(specs))

    return of(factors[:count]), of(factors[count:])


def peak_gpus(request: PlanRequest, seconds: float) -> float | None:
    """GPUs for every model's largest entry; None if the fleet is too small or time ran out."""
    from torchsplit_core.planning import plan

    specs = (
        replace(spec, demand_samples=(), min_throughput_rps=max(spec.demand_samples))
        for spec in request.models
    )
    objective = Objective("min_gpus")
    peak = replace(request, models=tuple(specs), objective=objective, sharing="exclusive")
    peak = replace(peak, solver=replace(peak.solver, time_limit_s=seconds))
    return plan(peak, reasons=False).objective.value


def measure(name: str, size: Size, seed: int) -> dict[str, object]:
    """Plan one request in this process."""
    from torchsplit_core.planning import plan, violations
    from torchsplit_core.planning.outcome.held_samples import counted_rates, held_share

    request, others = sampled_instance(FAMILIES[name], size, seed)
    begun = time.perf_counter()
    outcome = plan(request, reasons=False)
    wall = time.perf_counter() - begun
    unseen = None
    if outcome.gpus:
        unseen = held_share(others, counted_rates(others, outcome.gpus, outcome.models))
    return {
        "wall_s": wall,
        "status": outcome.status,
        "value": outcome.objective.value,
        "gap": 0.0 if outcome.objective.proven_levels else outcome.objective.gap,
        "held": None if outcome.samples is None else outcome.samples.share,
        "unseen": unseen,
        "peak": peak_gpus(request, min(10.0, size[3])) if FAMILIES[name].share else None,
        "faults": [f"{name}, seed {seed}: {fault}" for fault in violations(request, outcome)],
    }


def in_child(name: str, size: Size, seed: int) -> dict[str, object]:
    """`measure` in a process of its own."""
    arguments = ["--child", name, "--seeds", str(seed), "--size", *map(str, size)]
    return answer_of_child("demand_samples", arguments, size[3] + GRACE_S)


def _median(answers: list[dict[str, object]], key: str, form: str) -> str:
    known = [float(a[key]) for a in answers if a[key] is not None]  # type: ignore[arg-type]
    return format(statistics.median(known), form) if known else "n/a"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--child", metavar="NAME", help="plan one request in this process and print JSON")
    parser.add_argument(
        "--size",
        nargs=4,
        type=float,
        default=SIZE,
        metavar=("MODELS", "GPUS", "SAMPLES", "SECONDS"),
        help="of every request",
    )
    options = parser.parse_args()
    models, gpus, count, seconds = options.size
    size: Size = (int(models), int(gpus), int(count), float(seconds))
    if options.child:
        print(json.dumps(measure(options.child, size, options.seeds[0])))
        return 0
    columns = ("family", "seeds", "with a plan", "proven", "within 1 %", "median gap", "worst gap")
    print(heading((*columns, "GPUs or share, median", "peak GPUs", "held", "of unseen", "longest wall s")))
    faults: list[object] = []
    for name in options.families:
        answers = [in_child(name, size, seed) for seed in options.seeds]
        faults += [fault for answer in answers for fault in answer["faults"]]  # type: ignore[attr-defined]
        gaps = [float(a["gap"]) for a in answers if a["gap"] is not None]  # type: ignore[arg-type]
        print(
            row(
                (
                    name,
                    len(answers),
                    sum(a["status"] in ("optimal", "feasible") for a in answers),
                    sum(gap == 0.0 for gap in gaps),
                    sum(gap <= 0.01 for gap in gaps),
                    gap_text(statistics.median(gaps)) if gaps else "n/a",
                    gap_text(max(gaps)) if gaps else "n/a",
                    _median(answers, "value", ".4g"),
                    _median(answers, "peak", ".4g"),
                    _median(answers, "held", ".1%"),
                    _median(answers, "unseen", ".1%"),
                    f"{max(float(a['wall_s']) for a in answers):.1f}",  # type: ignore[arg-type]
                )
            ),
            flush=True,
        )
    print(f"\nFaults: {len(faults)}", *faults, sep="\n- " if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
