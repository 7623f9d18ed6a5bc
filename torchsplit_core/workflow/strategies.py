"""Searches training strategies for a model on a fleet, from its sizes or from its graph and torch's memory tracker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torchsplit_core.strategy.supported import RUNNERS, Runner
from torchsplit_core.values import InputFault, Profile, Progress, ignore_progress
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest
from torchsplit_core.values.training import SHARDED, ParallelConfig

if TYPE_CHECKING:
    from torchsplit_core.graph.torch_graph import TorchGraph
    from torchsplit_core.strategy.graph_model.solve import HostFigures, Tracker
    from torchsplit_core.values.strategy.run import RunStep

MOST_SHARDS_TRACKED = 64
"""Most devices that torch's tracker follows; beyond, only the sharded states change a device's memory."""


def strategy(
    request: StrategyRequest,
    *,
    graph: TorchGraph | None = None,
    profile: Profile | None = None,
    runners: tuple[Runner, ...] = RUNNERS,
    track: bool = True,
    trust: bool = False,
    identity: str | None = None,
    progress: Progress = ignore_progress,
) -> StrategyOutcome:
    """The fastest strategies to train a model on a fleet. Raises InputFault for an invalid request.

    All of `runners` (a training run, an exported file) can execute every candidate, except for features that the
    request allows in addition, and for divisions over unlike nodes, which only a training run executes; a candidate
    that cannot be exported says why.
    For a model of kind source: `graph` (traced if None), `profile`, and `track`: follow the best candidate with
    torch's memory tracker, which executes the model in a child. `identity`: by which runs of the model are known, where
    its source is no path here (`training.monitor.measured_steps`).
    """
    if not isinstance(request.model, SourceSizes):
        from torchsplit_core.strategy.search import search_strategy

        return _completed(request, search_strategy(request, runners=runners, progress=progress))
    from torchsplit_core.strategy.graph_model.solve import search_graph_strategy
    from torchsplit_core.workflow.steps import trace

    source = request.model.source
    if graph is None:
        graph = trace(source, trust=trust, progress=lambda share, text: progress(0.3 * share, text))
    outcome = search_graph_strategy(
        request,
        graph,
        profile,
        runners=runners,
        tracker=_tracker(request, graph, trust) if track else None,
        host=_host_figures(request, trust, measure=track),
        runs=_finished_runs(request, identity, trust),
        progress=lambda share, text: progress(0.3 + 0.7 * share, text),
    )
    return _completed(request, outcome)


def strategy_script(
    request: StrategyRequest,
    candidate: StrategyCandidate,
    *,
    graph: TorchGraph | None = None,
    trust: bool = False,
) -> str:
    """A candidate of the request's outcome as a plain PyTorch file.

    Raises InputFault for a candidate that cannot be exported, with the reason.
    """
    from torchsplit_core.strategy.export.script import TracedBlocks, script

    if not isinstance(request.model, SourceSizes):
        return script(request, candidate)
    from torchsplit_core.strategy.graph_model.solve import stage_starts
    from torchsplit_core.workflow.steps import trace

    graph = graph or trace(request.model.source, trust=trust)
    host = _host_figures(request, trust, measure=False)
    blocks, starts = stage_starts(request, graph, candidate, host)
    return script(request, candidate, TracedBlocks(blocks, starts), trust=trust)


def _completed(request: StrategyRequest, outcome: StrategyOutcome) -> StrategyOutcome:
    """Add why candidates cannot be exported, and compare the best one with published step times."""
    from torchsplit_core.strategy.export.exportability import not_exportable
    from torchsplit_core.strategy.published_mfu import mfu_warning

    warning = ""
    if outcome.candidates and len(request.fleet) == 1:
        model = request.model
        if isinstance(model, SourceSizes):
            parameters = float(outcome.statistics["parameters"])
        else:
            parameters = float(model.transformer().parameters)
        warning = mfu_warning(request.fleet[0].type, parameters, outcome.candidates[0].mfu)
    return replace(
        outcome,
        message=outcome.message + warning,
        candidates=tuple(
            replace(candidate, not_exportable=not_exportable(request, candidate))
            for candidate in outcome.candidates
        ),
    )


def _host_figures(request: StrategyRequest, trust: bool, *, measure: bool) -> HostFigures | None:
    """This host's measured figures, for a fleet of cores that could be this host; None for any other.

    With `measure`, missing rates and the time to fetch samples are measured.
    """
    from torchsplit_core.profiling.host_rates import host_rates, saved_rates
    from torchsplit_core.profiling.training_step.measurement import sample_seconds
    from torchsplit_core.strategy.graph_model.solve import HostFigures
    from torchsplit_core.strategy.search.machines import host_threads
    from torchsplit_core.workspace.store import default_root

    assert isinstance(request.model, SourceSizes)
    threads = host_threads(request.fleet)
    if threads is None:
        return None
    rates = host_rates(default_root(), threads) if measure else saved_rates(default_root(), threads)
    if rates is None:
        return None
    sample_s = sample_seconds(request.model.source, trust=trust) if measure else 0.0
    return HostFigures(rates, sample_s)


def _finished_runs(request: StrategyRequest, identity: str | None, trust: bool) -> tuple[RunStep, ...]:
    """Steps of finished runs of the model on this host, on a device like the fleet's, unless the request says no."""
    from torchsplit_core.training.monitor.measured_steps import identity_of, run_steps
    from torchsplit_core.workspace.store import default_root

    assert isinstance(request.model, SourceSizes)
    if not request.model.calibrate_by_runs or not request.fleet:
        return ()
    identity = identity or identity_of(request.model.source, trust=trust)
    if identity is None:
        return ()
    return run_steps(default_root(), identity, request.fleet[0].type, request.training)


def _tracker(request: StrategyRequest, graph: TorchGraph, trust: bool) -> Tracker:
    """A function that tracks a configuration in torch and returns None for those that the trackers do not support."""
    from torchsplit_core.profiling.training_step.measurement import track_peak
    from torchsplit_core.strategy.graph_model.blocks import chain_of
    from torchsplit_core.strategy.graph_model.memory import shards

    assert isinstance(request.model, SourceSizes)
    source, training = request.model.source, request.training
    blocks, per_node = chain_of(graph).blocks, request.fleet[0].gpus_per_node
    half = training.precision in ("bf16", "fp16")

    def follow(choices: ParallelConfig) -> int | None:
        gathered = choices.shard in SHARDED
        group = shards(choices, per_node) if gathered else 1
        known = choices.pipeline == 1 and choices.offload == "none" and choices.recompute != "selective"
        # The trackers miss autocast's copies; gradient accumulation keeps earlier gradients.
        once = training.global_batch == choices.data * choices.micro_batch
        if not known or not once or choices.shard == "zero1" or (half and not gathered):
            return None
        if group > MOST_SHARDS_TRACKED or source.endswith(".pt2"):
            return None
        try:
            return track_peak(
                source,
                choices.micro_batch,
                shards=group,
                reshard=choices.shard != "zero2",
                half=half,
                recompute=choices.recompute == "full",
                blocks=blocks,
                optimizer=training.optimizer,
                trust=trust,
            )
        except InputFault:
            # Torch cannot track every model; the estimates from the graph remain.
            return None

    return follow
