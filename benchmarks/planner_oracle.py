"""Random small requests with every feature of the contract, against a look at every plan.

Each outcome is compared with the best of all plans (sorted vector, value, bytes torn apart), checked
by verify, and where both say infeasible its reasons are checked by the same look: every named conflict
infeasible with all else dropped, feasible without any one of its own demands, and the request with
the least relaxation feasible; with whole slices that relaxation is also compared with the least one.

Groups: whole slices, all features, four objectives; shares on one GPU, where every set of tenants can
be tried; and shares with all features, where no such look exists: there the best whole-slice plan is a
plan too, so nothing worse may come out, and "infeasible" must be true of whole slices. Then requests with
links, nodes, intervals (planned as they are or at the low end) and unknown memory, cut models among them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.planner_report import TOLERANCE, heading, row

# The tests' oracles: one brute force serves both, and it shares nothing with the planner.
from tests.support.planning.oracle import best_plan, least_change
from tests.support.planning.requests import random_request
from tests.support.planning.shared_oracle import best_shared
from tests.support.planning.shared_requests import small
from tests.support.planning.world import worldly
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.infeasibility.conflicts import with_demands
from torchsplit_core.planning.request.edit import with_relaxation
from torchsplit_core.values import InputFault, InternalFault, Objective, PlanOutcome, PlanRequest

Best = tuple[tuple[float, ...], float | None]
"""The vector to maximise, and the bytes separated by the plan (None: not compared)."""

Oracle = Callable[[PlanRequest], Best | None]

KINDS = ("leximin", "max_min", "weighted_sum", "min_gpus")


@dataclass
class Tally:
    """A group's counts, descriptions of its faults, and the largest relative difference among equal values."""

    requests: int = 0
    equal: int = 0
    infeasible: int = 0
    conflicts: int = 0
    relaxations: int = 0
    verify: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    largest: float = 0.0


def whole(request: PlanRequest) -> Best | None:
    """The best exclusive plan."""
    return best_plan(request)


def shared(request: PlanRequest) -> Best | None:
    """The best fractional plan on one GPU, for leximin and max_min."""
    vector = best_shared(request)
    if vector is None:
        return None
    return (vector[:1] if request.objective.kind == "max_min" else vector), None


def judge(tally: Tally, name: str, request: PlanRequest, oracle: Oracle, *, at_least: bool = False) -> None:
    """Plan one request and compare; `at_least`: the oracle is only a lower bound."""
    tally.requests += 1
    expected = oracle(request)
    try:
        outcome = plan(request)
    except (InputFault, InternalFault) as fault:
        tally.verify.append(f"{name}: {fault}")
        return
    tally.verify += [f"{name}: {fault}" for fault in violations(request, outcome)]
    if outcome.status == "infeasible":
        if expected is not None:
            tally.differences.append(f"{name}: infeasible, but {expected[0]} is possible")
            return
        tally.infeasible += 1
        if not at_least:
            _explained(tally, name, request, outcome, oracle)
        return
    if outcome.objective.value is None:
        tally.differences.append(f"{name}: {outcome.status}, expected {expected}")
        return
    found = reached(request, outcome)
    if at_least:
        if expected is not None and compare(found[0], expected[0]) < 0:
            tally.differences.append(f"{name}: {found[0]}, but whole slices give {expected[0]}")
        else:
            tally.equal += 1
        return
    if expected is None or outcome.status != "optimal" or not _equal(found, expected):
        tally.differences.append(f"{name}: {outcome.status} {found}, expected {expected}")
        return
    tally.equal += 1
    for mine, other in zip(found[0], expected[0], strict=True):
        tally.largest = max(tally.largest, abs(mine - other) / (max(abs(mine), abs(other)) or 1.0))


def reached(request: PlanRequest, outcome: PlanOutcome) -> Best:
    """The value of the outcome's plan, in the oracle's terms."""
    objective = outcome.objective
    assert objective.value is not None
    vector: tuple[float, ...] = (objective.value,)
    if objective.kind == "leximin":
        paid = objective.sorted_normalised[0] - objective.value
        vector = tuple(value - paid for value in objective.sorted_normalised)
    elif objective.kind == "min_gpus":
        vector = (-objective.value,)
    torn = 0.0
    if request.objective.separation_weight == 0:
        for gpu in outcome.gpus:
            there = {tenant.model for item in gpu.slices for tenant in item.tenants}
            for pair in request.colocations:
                if pair.mode == "soft" and 0 < len(there & set(pair.models)) < len(pair.models):
                    torn += pair.bytes_per_request
    return vector, torn


def compare(first: Sequence[float], second: Sequence[float]) -> int:
    """Lexicographic order of two vectors; values within the contract's tolerance are equal."""
    for mine, other in zip(first, second, strict=True):
        if not _close(mine, other):
            return 1 if mine > other else -1
    return 0


def _close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=1e-9)


def _equal(found: Best, expected: Best) -> bool:
    if compare(found[0], expected[0]) != 0:
        return False
    return expected[1] is None or found[1] is None or _close(found[1], expected[1])


def _explained(tally: Tally, name: str, request: PlanRequest, outcome: PlanOutcome, oracle: Oracle) -> None:
    """Check the reasons of an infeasible outcome by the oracle."""
    if not outcome.conflicts:
        tally.reasons.append(f"{name}: infeasible without a conflict")
    for conflict in outcome.conflicts:
        tally.conflicts += 1
        if oracle(with_demands(request, conflict.demands)) is not None:
            tally.reasons.append(f"{name}: {conflict.demands} can be met together")
        for demand in conflict.demands:
            rest = [other for other in conflict.demands if other != demand]
            if oracle(with_demands(request, rest)) is None:
                tally.reasons.append(f"{name}: {conflict.demands} is not minimal, {demand} is too much")
    relaxed = outcome.least_relaxation
    if relaxed is None:
        if not any(item.mode == "hard" for item in request.colocations):
            tally.reasons.append(f"{name}: no relaxation, though no co-location stands in the way")
        return
    tally.relaxations += 1
    if oracle(with_relaxation(request, relaxed)) is None:
        tally.reasons.append(f"{name}: {relaxed} does not mend the request")
    if request.sharing == "exclusive":
        total, least = sum(abs(item.new - item.old) / item.old for item in relaxed), least_change(request)
        if not math.isclose(total, least, rel_tol=1e-5, abs_tol=1e-6):
            tally.reasons.append(f"{name}: relaxes by {total}, {least} is enough")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--exclusive", type=int, default=400, help="requests with whole slices")
    parser.add_argument("--fractional", type=int, default=100, help="requests with shares on one GPU")
    parser.add_argument("--linked", type=int, default=400, help="requests with links and nodes, whole slices")
    parser.add_argument("--linked-shares", type=int, default=100, help="the same with shares on one GPU")
    parser.add_argument("--at-least", type=int, default=80, help="requests with shares and all features")
    parser.add_argument("--first-seed", type=int, default=1000, help="the tests use seeds below 100")
    options = parser.parse_args()
    columns = (
        "requests",
        "looked at",
        "equal",
        "infeasible, agreed",
        "verify faults",
        "differences",
        "conflicts checked",
        "relaxations checked",
        "wrong reasons",
        "largest relative difference",
    )
    print(heading(columns))
    wrong: list[str] = []

    def show(title: str, tally: Tally, *, exact: bool) -> None:
        cells = (
            title,
            tally.requests,
            tally.equal if exact else f"{tally.equal} no worse",
            tally.infeasible,
            len(tally.verify),
            len(tally.differences),
            tally.conflicts,
            tally.relaxations,
            len(tally.reasons),
            f"{tally.largest:.1e}" if tally.largest else "0",
        )
        print(row(cells if exact else [*cells[:6], "–", "–", "–", "–"]), flush=True)
        wrong.extend([*tally.verify, *tally.differences, *tally.reasons])

    seeds = options.first_seed
    for number, kind in enumerate(KINDS):
        tally = Tally()
        for seed in range(seeds, seeds + _part(options.exclusive, number, len(KINDS))):
            judge(tally, f"whole slices, {kind}, seed {seed}", random_request(seed, kind), whole)
        show(f"whole slices, {kind}", tally, exact=True)
    for number, kind in enumerate(KINDS[:2]):
        tally = Tally()
        for seed in range(seeds, seeds + _part(options.fractional, number, 2)):
            judge(tally, f"shares on one GPU, {kind}, seed {seed}", small(seed, kind), shared)
        show(f"shares on one GPU, {kind}", tally, exact=True)
    tally = Tally()
    for number, kind in enumerate(KINDS):
        for seed in range(seeds, seeds + _part(options.at_least, number, len(KINDS))):
            request = random_request(seed, kind, "fractional")
            judge(tally, f"shares, {kind}, seed {seed}", request, _of_whole_slices, at_least=True)
    show("shares, all features", tally, exact=False)
    for title, sharing, count, oracle in (
        ("links and nodes, whole slices", "exclusive", options.linked, whole),
        ("links and nodes, shares on one GPU", "fractional", options.linked_shares, shared),
    ):
        tally = Tally()
        for seed in range(seeds, seeds + count):
            request = worldly(seed, sharing)
            if sharing == "fractional":
                request = replace(request, objective=Objective("leximin"))
            judge(tally, f"{title}, seed {seed}", request, oracle)
        show(title, tally, exact=True)
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    return 1 if wrong else 0


def _of_whole_slices(request: PlanRequest) -> Best | None:
    return best_plan(replace(request, sharing="exclusive"))


def _part(total: int, number: int, parts: int) -> int:
    """Size of part `number` when `total` is divided into `parts`."""
    return total // parts + (number < total % parts)


if __name__ == "__main__":
    sys.exit(main())
