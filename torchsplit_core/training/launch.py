"""Start a node's ranks with torch's elastic agent, and restart them when one is lost."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from torchsplit_core import extras, telemetry
from torchsplit_core.checkpoints.trained_run import read_validation
from torchsplit_core.model_source import ModelSource, parse_source
from torchsplit_core.training.attempts.agent_environment import agent_log, agent_variables, restored_signals
from torchsplit_core.training.attempts.hang_detection import Hang, HangMonitor, end_hung_ranks
from torchsplit_core.training.fitted_strategy import fit_to_world_size, fit_to_world_sizes
from torchsplit_core.training.monitor.control_files import is_requested, stop_on_request
from torchsplit_core.training.monitor.exporters import export_metrics
from torchsplit_core.training.monitor.gpu_sampler import sample_gpus
from torchsplit_core.training.monitor.launch_record import LaunchRecord
from torchsplit_core.training.periodic import run_periodically
from torchsplit_core.training.rebalance.overrides import fit_attempt, read_overrides, save_overrides
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault, Progress, ignore_progress
from torchsplit_core.values.strategy.run import ElasticNodes, Exports, RunOptions, RunStrategy, RunSummary

if TYPE_CHECKING:
    from torchsplit_core.training.attempts.rendezvous import LocalRendezvous, RendezvousRound, StoreRendezvous
    from torchsplit_core.training.rank import ExitReason, RankTask

PROCESSES_PER_CORE = 4
"""With more, processes would wait for each other most of the time."""
PRELOADED = ("torchsplit_core.training.rank", "torch._dynamo", "numpy.random", "fsspec.implementations.local")
"""Modules that each process has loaded when it starts; torch would import the later ones when it divides or saves."""
PRELOADED_PIPELINE = (
    "torchsplit_core.training.pipeline.engine",
    "torch.export._trace",
    "torch._inductor.output_code",
)
"""Loaded as well for a pipeline; torch would import the later ones when it traces."""
MAX_FAILED_ATTEMPTS, MAX_FAILED_ATTEMPTS_REMOTE = 2, 5
"""Attempts in a row without a new step that end a run; the second number applies if ranks of other nodes were lost."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """Why an attempt ended: the rank that failed (None: the fork server), and a message.

    `remote`: another node, or the connection to the others, was lost.
    """

    rank: int | None
    message: str
    fault: InputFault | None = None
    killed: bool = False
    remote: bool = False
    out_of_memory: bool = False


def train(
    source: str,
    strategy: RunStrategy,
    folder: str | Path,
    *,
    options: RunOptions | None = None,
    processes: int | None = None,
    nodes: ElasticNodes | None = None,
    resume: bool = False,
    trust: bool = False,
    exports: Exports | None = None,
    progress: Progress = ignore_progress,
) -> RunSummary:
    """Train the source's client by the strategy, in the run's folder.

    `processes`: how many this machine runs, by default as many as the strategy's devices; the number of data-parallel
    ranks follows, the global batch stays. `nodes`: this machine is one of several that share the folder and each run
    this with as many processes; the run goes on with those present. Executes the source in its own processes with this
    user's rights. Raises InputFault for what cannot be run, a loss that is not finite, and processes that keep failing.
    """
    extras.require_extra("train")
    options = options or RunOptions()
    parsed = parse_source(source, trust=trust)
    count = strategy.choices.devices if processes is None else processes
    if nodes and processes is None:
        count = max(1, count // nodes.most)
    numbers = range(nodes.least, nodes.most + 1) if nodes else (1,)
    fitted = fit_to_world_sizes(strategy, options, (count * number for number in numbers))
    _check_cores(count)
    run = RunFolder(folder, nodes.name if nodes else "")
    with (
        run.shared(nodes.rendezvous, resume=resume) if nodes else run.exclusive(resume=resume),
        report_progress(run, options.steps, progress),
        stop_on_request(run.path),
        export_metrics(run.path, exports or Exports()),
        sample_gpus(run.path, run.node) as gpus,
        telemetry.span(
            telemetry.schema.TRAIN, model=parsed.text, processes=fitted.choices.devices
        ) as run_span,
    ):
        if fitted.choices.pipeline < strategy.choices.pipeline:
            words = f"{fitted.choices.pipeline} of the strategy's {strategy.choices.pipeline} stages"
            run.log_event("scaled", f"{words}, the most that divide {_processes(fitted.choices.devices)}")
        restarts = _supervise(run, parsed.text, trust, fitted, options, count, nodes)
        last = run.last_step()
        run_span.set(
            step=last and last["step"], loss=last and last["loss"], restarts=restarts, **gpus.by_name()
        )
        if nodes is None:
            _save_measured_step(run, parsed, fitted, options)
    validation = read_validation(run.path)
    return RunSummary(
        last["step"] if last else 0,
        last["loss"] if last else None,
        restarts,
        validation.metrics if last and validation and validation.step == last["step"] else {},
        run.last_warnings(),
    )


def _save_measured_step(
    run: RunFolder, source: ModelSource, strategy: RunStrategy, options: RunOptions
) -> None:
    """Save the step of a run that is done, for the next estimate of its model. What cannot be read is left out."""
    from torchsplit_core.training.monitor.measured_steps import save_run_step
    from torchsplit_core.workspace.store import default_root

    with contextlib.suppress(InputFault):
        save_run_step(default_root(), source, strategy, options, run)


def _supervise(
    run: RunFolder,
    source: str,
    trust: bool,
    strategy: RunStrategy,
    options: RunOptions,
    count: int,
    nodes: ElasticNodes | None,
) -> int:
    """Run attempts on this node until one ends well; returns the number of restarts.

    If processes are killed again and again (memory is short, say), a single machine goes on with one copy of the model
    fewer.
    """
    from torchsplit_core.training.attempts.rendezvous import LocalRendezvous, StoreRendezvous
    from torchsplit_core.training.rank import VALIDATE, RankTask
    from torchsplit_core.training.validation import validate

    if nodes:
        run.log_event(
            "node_joined",
            f"node {run.node}, with {_processes(count)}, meets the others at {nodes.rendezvous}",
        )
    rendezvous = StoreRendezvous(nodes) if nodes else LocalRendezvous()
    launch = LaunchRecord(source, strategy, options)
    restarts, failed_attempts, furthest, token = 0, 0, _last_step(run), ""
    while True:
        current_round = rendezvous.next_round(token)
        token, reports = current_round.token, run.logs / f"start-{current_round.token}"
        reports.mkdir(exist_ok=True)
        task = RankTask(
            source, trust, strategy, options, str(run.path), run.node, str(reports), os.getpid(), launch,
            agents=nodes.address if nodes else None,
        )  # fmt: skip
        with telemetry.span(telemetry.schema.TRAIN_START, processes=count) as attempt_span:
            failure = _run_attempt(task, run, count, rendezvous, current_round)
            # An exit file means that everything is written, however the processes ended afterwards.
            exit_reason = _exit_reason(reports)
            attempt_span.set(lost=None if exit_reason else failure.message)
        if exit_reason == "done":
            if (reports / VALIDATE).exists():
                validate(run, source, trust, _last_step(run))
            return restarts
        if exit_reason == "moves":
            failed_attempts, furthest = 0, _last_step(run)
            continue
        if failure.fault:
            run.log_event("stopped", str(failure.fault), failure.rank)
            raise failure.fault
        reached = _last_step(run)
        failed_attempts = 0 if reached > furthest else failed_attempts + 1
        furthest = max(furthest, reached)
        who = "the processes" if failure.rank is None else f"rank {failure.rank}"
        where = "after the last step" if reached == run.facts().get("steps") else f"at step {reached + 1}"
        if failure.remote:
            run.log_event("others_lost", f"node {run.node} {failure.message}, {where}")
        else:
            run.log_event("rank_lost", f"{who} {failure.message}, {where}", failure.rank)
        if failure.out_of_memory:
            _reduce_memory(run, strategy, options, failure)
            failed_attempts = 0
        elif failed_attempts >= MAX_FAILED_ATTEMPTS and _revert_stages(
            run, f"{MAX_FAILED_ATTEMPTS} starts did not get past step {reached}"
        ):
            failed_attempts = 0
        may_shrink = (
            failure.killed
            and strategy.choices.data > 1
            and not (options.shares or strategy.shares)
            and nodes is None
        )
        if failed_attempts >= MAX_FAILED_ATTEMPTS and may_shrink:
            count = strategy.choices.devices // strategy.choices.data * (strategy.choices.data - 1)
            strategy = fit_to_world_size(strategy, count)
            failed_attempts = 0
            words = f"goes on with {_processes(count)}, the global batch as it was"
            run.log_event("scaled", f"{MAX_FAILED_ATTEMPTS} starts did not get past step {reached}: {words}")
        elif failed_attempts >= (MAX_FAILED_ATTEMPTS_REMOTE if failure.remote else MAX_FAILED_ATTEMPTS):
            raise InputFault(
                who,
                f"{failure.message}; {failed_attempts} starts did not get past step {reached}",
                f"Read the logs in {reports}, mend the cause, and resume the run.",
            )
        restarts += 1
        where = f" of node {run.node}" if nodes else ""
        run.log_event("restarted", f"{_processes(count)}{where} started again (restart {restarts})")


def _exit_reason(reports: Path) -> ExitReason | None:
    """The exit reason that the attempt's ranks left; None if the attempt failed."""
    from torchsplit_core.training.rank import ExitReason, exit_file

    return next(
        (reason for reason in get_args(ExitReason) if any(reports.glob(exit_file(reason, "*")))), None
    )


def _revert_stages(run: RunFolder, why: str, rank: int | None = None) -> bool:
    """Put moved pipeline blocks back on their stages for good, from the next attempt on; False if none has moved."""
    overrides = read_overrides(run.path)
    if not overrides.layers:
        return False
    save_overrides(run.path, replace(overrides, layers=(), stay=True, under_way=None))
    run.log_event(
        "layers_back", f"{why}: the blocks that moved go back to their stages, and stay there", rank
    )
    return True


def _reduce_memory(run: RunFolder, strategy: RunStrategy, options: RunOptions, failure: RankFailure) -> None:
    """Make the next attempt use less memory. Raises InputFault if nothing smaller is left."""
    from torchsplit_core.training.rebalance.memory_guard import memory_config_of

    if _revert_stages(run, f"rank {failure.rank} ran out of memory", failure.rank):
        return
    world = run.facts().get("processes") or strategy.choices.devices
    config = memory_config_of(fit_attempt(strategy, options, run.path, world)[0]).reduced()
    if config is None:
        raise InputFault(
            f"rank {failure.rank}",
            f"{failure.message}, even in passes of one sample with every layer computed again",
            "Shard the weights (shard: fsdp), use more devices or a smaller model, and resume the run.",
        )
    save_overrides(
        run.path,
        replace(read_overrides(run.path), micro_batch=config.micro_batch, recompute=config.recompute),
    )
    words = (
        f"rank {failure.rank} ran out of memory: goes on with {config.describe()}, the global batch as it was"
    )
    run.log_event("out_of_memory", words, failure.rank)


def _run_attempt(
    task: RankTask,
    run: RunFolder,
    count: int,
    rendezvous: StoreRendezvous | LocalRendezvous,
    current_round: RendezvousRound,
) -> RankFailure:
    """Run one attempt; returns how it ended, to the agent always in failure. Raises KeyboardInterrupt if stopped."""
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from torchsplit_core.training.rank import train_in_rank

    # The processes are forked from a server that has torch loaded: they start at once, without the agent's threads and
    # sockets.
    pipeline_modules = PRELOADED_PIPELINE if task.strategy.choices.pipeline > 1 else ()
    multiprocessing.set_forkserver_preload([*PRELOADED, *pipeline_modules])
    reports = Path(task.reports)
    config = LaunchConfig(
        **current_round.settings,
        nproc_per_node=count,
        run_id=current_round.token,
        max_restarts=0,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(run.logs), redirects=Std.ALL),
    )
    monitor = HangMonitor(reports, run.node, task.options.stall_limit_s)
    with (
        agent_variables(count, rendezvous.environment()),
        restored_signals(),
        agent_log(run.logs / f"agent-{run.node}.log"),
        end_hung_ranks(monitor, run),
    ):
        try:
            elastic_launch(config, train_in_rank)(task)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            cause = _failure_cause(reports, rank, failure.exitcode, monitor.reported, run.node)
            return cause if current_round.settings["max_nodes"] > 1 else replace(cause, remote=False)
        except (EOFError, ConnectionError) as error:
            return RankFailure(None, f"could not be started ({type(error).__name__})", killed=True)
        except (RendezvousError, DistError) as error:
            return RankFailure(None, f"lost the others ({type(error).__name__})", remote=True)
        except SignalException as stop:
            by = "on request" if is_requested(run.path, "stop") else f"by {stop.sigval.name}"
            run.log_event("stopped", f"node {run.node} was stopped {by} after step {_last_step(run)}")
            raise KeyboardInterrupt from stop
    return RankFailure(None, "ended without a message")


def _failure_cause(reports: Path, rank: int, exit_code: int, hung: dict[int, Hang], node: str) -> RankFailure:
    """Why the processes ended, from their reports and the exit code of the first one."""
    reports_by_time = sorted(
        (
            (json.loads(path.read_text(encoding="utf-8")), int(path.stem[5:]))
            for path in reports.glob("rank-*.json")
        ),
        key=lambda item: item[0]["time"],
    )
    for report, number in reports_by_time:
        if "where" in report:
            fault = InputFault(report["where"], report["problem"], report["remedy"])
            return RankFailure(number, str(fault), fault)
    if rank in hung:
        return RankFailure(rank, "stalled and was ended", killed=True)
    # If one rank runs out of memory, the others fail because it is gone, whichever of them ended first.
    local_reports = [(report, number) for report, number in reports_by_time if report["node"] == node]
    short_rank = next((number for report, number in local_reports if report.get("short_of_memory")), rank)
    rank = rank if exit_code < 0 else short_rank
    rank_report = next(
        (report for report, number in reports_by_time if number == rank), {"error": f"ended with {exit_code}"}
    )
    if rank_report.get("others"):
        return RankFailure(rank, f"lost the others ({rank_report['error']})", remote=True)
    if exit_code < 0:
        return RankFailure(rank, f"was ended by {signal.Signals(-exit_code).name}", killed=True)
    return RankFailure(
        rank, f"failed: {rank_report['error']}", out_of_memory=bool(rank_report.get("short_of_memory"))
    )


def most_processes() -> int:
    """The maximum number of processes that share this machine's cores in reasonable time."""
    return PROCESSES_PER_CORE * len(os.sched_getaffinity(0))


def _check_cores(count: int) -> None:
    """Raises InputFault for more processes than this machine can run."""
    if count > most_processes():
        raise InputFault(
            "--processes",
            f"is {count}, above the {most_processes()} that this machine takes ({PROCESSES_PER_CORE} a core)",
            "Give fewer with --processes: the global batch stays as it is. Or write the files that start the run on "
            "a cluster with --write-fleet.",
        )


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _last_step(run: RunFolder) -> int:
    last = run.last_step()
    return int(last["step"]) if last else 0


@contextlib.contextmanager
def report_progress(run: RunFolder, steps: int | None, progress: Progress) -> Iterator[None]:
    """Report progress from the step lines while the run goes on."""

    def poll() -> None:
        if last := run.last_step():
            total = steps or run.facts().get("steps") or last["step"]
            progress(
                min(1.0, last["step"] / total), f"step {last['step']} of {total}, loss {last['loss']:.6g}"
            )

    with run_periodically(poll, "progress"):
        yield
