"""A strategy request to its outcome."""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.strategy.search.candidate import candidate
from torchsplit_core.strategy.search.constraints import check_fixed_choices, check_fixed_choices_of_any
from torchsplit_core.strategy.search.descriptions import (
    describe_best,
    describe_shortfall,
    describe_smallest_fleet,
    refusals_of,
)
from torchsplit_core.strategy.search.hetero_outcome import EntryResult, hetero_outcome
from torchsplit_core.strategy.search.hetero_pipeline.search import HeteroPipelineSearch
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch, SearchResult
from torchsplit_core.strategy.search.machines import Machine, read_fleet
from torchsplit_core.strategy.search.space import SearchSpace
from torchsplit_core.strategy.search.uneven_copies import CopiesResult, UnevenCopiesSearch
from torchsplit_core.strategy.supported import RUNNERS, TRAIN, Runnable, Runner, traits_of
from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.progress import Progress, ignore_progress
from torchsplit_core.values.strategy.communication import check_communication
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest

MOST_DEVICES = 2**17
"""Most devices of a fleet."""
COPIES_SHARE = 0.5
"""Share of the time for the search over copies on uneven parts of the batch; pipelines across entries follow."""
MOST_ENTRIES = 8
"""Most entries of a fleet: every set of them is a way to train."""


def search_strategy(
    request: StrategyRequest,
    *,
    runners: tuple[Runner, ...] = RUNNERS,
    progress: Progress = ignore_progress,
) -> StrategyOutcome:
    """The fastest fitting choices that all the runners support, with the refused ones and why.

    Raises InputFault for inconsistent sizes, unknown GPUs, links of 0, a precision that a card lacks, and fixes that
    contradict each other or cannot be run.
    """
    started = time.monotonic()
    check_communication(request.communication)
    model = request.model
    if isinstance(model, SourceSizes):
        raise InputFault(
            "model.kind",
            f"is {quoted(model.kind)}: a traced model is planned from its graph (workflow.strategy)",
            "Give the model's layers, hidden, heads, kv_heads, ffn, vocab and sequence.",
        )
    machines = read_fleet(request.fleet, request.training.precision)
    devices = sum(machine.devices for machine in machines)
    if devices > MOST_DEVICES:
        raise InputFault(
            "fleet",
            f"has {devices} devices, more than the {MOST_DEVICES} that are planned at once",
            "Plan a part of it.",
        )
    sizes, job = model.transformer(), request.training
    runnable = Runnable(job.precision, traits_of(model), request.may_need, runners)
    spaces = [
        SearchSpace(sizes, job, machine.cluster.gpus_per_node, request.fix, runnable) for machine in machines
    ]
    estimated = [replace(space, runnable=runnable.anything()) for space in spaces]
    if len(machines) > 1:
        check_fixed_choices_of_any(estimated, [machine.devices for machine in machines])
        runnable.check_fix(request.fix)
        return _solve_heterogeneous(machines, spaces, request, started, progress)
    check_fixed_choices(estimated[0], devices)
    runnable.check_fix(request.fix)
    return _solve_homogeneous(machines[0], spaces[0], request.top_k, started, progress)


def _solve_heterogeneous(
    machines: tuple[Machine, ...],
    spaces: list[SearchSpace],
    request: StrategyRequest,
    started: float,
    progress: Progress,
) -> StrategyOutcome:
    if len(machines) > MOST_ENTRIES:
        raise InputFault(
            "fleet",
            f"has {len(machines)} entries, more than the {MOST_ENTRIES} that are planned at once",
            "Join equal ones.",
        )
    limit = request.solver.time_limit_s
    progress(0.0, f"{len(machines)} kinds of nodes, each alone")
    entries = []
    for machine, space in zip(machines, spaces, strict=True):
        search = HomogeneousSearch(machine, space)
        entries.append(EntryResult(search, search.best(machine.devices, 1)))
    known = min((entry.least_s for entry in entries), default=float("inf"))
    copies, pipelines = CopiesResult(), None
    if "train" in spaces[0].runnable.runners:
        # Only a training run divides its work over unlike nodes.
        trained = [
            HomogeneousSearch(machine, replace(space, runnable=replace(space.runnable, runners=TRAIN)))
            for machine, space in zip(machines, spaces, strict=True)
        ]
        progress(0.3, "copies of the model")
        copies = UnevenCopiesSearch(trained).run(request.top_k, started + COPIES_SHARE * limit, known)
        progress(0.6, "pipelines across them")
        pipelines = HeteroPipelineSearch(trained)
        pipelines.run(started + limit, min([known, *(made.seconds for made in copies.best[:1])]))
    return hetero_outcome(entries, copies, pipelines, request.top_k, started)


def _solve_homogeneous(
    machine: Machine, space: SearchSpace, top_k: int, started: float, progress: Progress
) -> StrategyOutcome:
    search = HomogeneousSearch(machine, space)
    progress(0.0, f"{machine.devices} devices")
    result = search.best(machine.devices, top_k)
    used = machine.devices
    if not result.best:
        # If all devices do not divide, use the most that do.
        used = next((count for count in range(machine.devices - 1, 0, -1) if search.fits(count)), 0)
        if not used:
            return _infeasible(search, machine, result, started)
        progress(0.5, f"{used} of {machine.devices} devices")
        result = search.best(used, top_k)
    return StrategyOutcome(
        "optimal",
        tuple(
            candidate(space.model, machine.device, space.job, choices, step) for choices, step in result.best
        ),
        result.considered,
        refusals_of(result.refused),
        describe_best(result.best, machine.devices, used),
        result.best[0][1].seconds,
        _statistics(result, started),
    )


def _infeasible(
    search: HomogeneousSearch, machine: Machine, result: SearchResult, started: float
) -> StrategyOutcome:
    """Proof that nothing fits: what is missing, and the smallest fleet of such nodes that would do."""
    closest, missing = search.closest_infeasible(machine.devices)
    message = f"No choice fits on {machine.devices} × {machine.type}"
    if closest is None:
        message += ": none for all of them divides the model and the batch"
    else:
        message += f": {describe_shortfall(closest, missing)}, which is the least"
    message += f". {describe_smallest_fleet(search)}"
    statistics = _statistics(result, started)
    return StrategyOutcome(
        "infeasible", (), result.considered, refusals_of(result.refused), f"{message}.", None, statistics
    )


def _statistics(result: SearchResult, started: float) -> dict[str, str | int | float]:
    return {"reckoned": result.estimated, "seconds": time.monotonic() - started}
