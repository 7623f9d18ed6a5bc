"""Start the processes of a run with torch's elastic agent, and start them again when one is lost."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import telemetry
from torchsplit_core.model_source import parse_source
from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.layout import on_processes
from torchsplit_core.running.shares import check_shares
from torchsplit_core.running.watch.asking import stopped_when_asked
from torchsplit_core.running.watch.exports import Exports, exported
from torchsplit_core.running.watch.launched import Launch
from torchsplit_core.values import InputFault, Progress, ignore_progress
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy, RunSummary

if TYPE_CHECKING:
    from torchsplit_core.running.rank import RankTask

PROCESSES_A_CORE = 4
"""More would wait for each other most of the time."""
PRELOADED = ("torchsplit_core.running.rank", "torch._dynamo", "numpy.random", "fsspec.implementations.local")
"""What each process has loaded when it starts; torch itself loads the later ones when it divides or saves."""
FRUITLESS = 2
"""Starts without a new step after which a run stops."""
LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the processes ended: a rank (None: what they are forked from), and in words how."""

    rank: int | None
    words: str
    fault: InputFault | None = None
    killed: bool = False


def train(
    source: str,
    strategy: RunStrategy,
    folder: str | Path,
    *,
    options: RunOptions | None = None,
    processes: int | None = None,
    resume: bool = False,
    trust: bool = False,
    exports: Exports | None = None,
    progress: Progress = ignore_progress,
) -> RunSummary:
    """Train the source's client by the strategy, in the run's folder.

    `processes`: as many as the strategy's devices where None; its data-parallel ranks are as many as fit them, its
    global batch stays. Executes the source in its own processes, with this user's rights. Raises InputFault for what
    cannot be run, a loss that is not finite, and a process that fails without end.
    """
    options = options or RunOptions()
    parsed = parse_source(source, trust=trust)
    fitted = on_processes(strategy, strategy.choices.devices if processes is None else processes)
    _check_cores(fitted.choices.devices)
    check_shares(options.shares, fitted.choices.data)
    run = RunFolder(folder)
    with (
        run.claimed(resume=resume),
        _followed(run, options.steps, progress),
        stopped_when_asked(run.path),
        exported(run.path, exports or Exports()),
        telemetry.span(telemetry.schema.TRAIN, model=parsed.text, processes=fitted.choices.devices) as whole,
    ):
        restarts = _until_done(run, parsed.text, trust, fitted, options)
        last = run.last_step()
        whole.set(step=last and last["step"], loss=last and last["loss"], restarts=restarts)
    return RunSummary(last["step"] if last else 0, last["loss"] if last else None, restarts)


def _until_done(run: RunFolder, source: str, trust: bool, strategy: RunStrategy, options: RunOptions) -> int:
    """Start the processes until they end well; how often they were started again.

    Where they are killed again and again (memory is short, say) it goes on with one copy of the model fewer.
    """
    from torchsplit_core.running.rank import RankTask

    launch = Launch(source, strategy, options)
    restarts, fruitless, furthest = 0, 0, _furthest(run)
    while True:
        reports = tempfile.mkdtemp(prefix="start-", dir=run.logs)
        task = RankTask(source, trust, strategy, options, str(run.path), reports, os.getpid(), launch)
        with telemetry.span(telemetry.schema.TRAIN_START, processes=strategy.choices.devices) as begun:
            lost = _start(task, run, strategy.choices.devices)
            begun.set(lost=lost and lost.words)
        if lost is None:
            return restarts
        if lost.fault:
            run.tell("stopped", str(lost.fault), lost.rank)
            raise lost.fault
        reached = _furthest(run)
        fruitless = 0 if reached > furthest else fruitless + 1
        furthest = max(furthest, reached)
        who = "the processes" if lost.rank is None else f"rank {lost.rank}"
        run.tell("rank_lost", f"{who} {lost.words}, at step {reached + 1}", lost.rank)
        if fruitless >= FRUITLESS and lost.killed and strategy.choices.data > 1 and not options.shares:
            strategy = _with_a_copy_fewer(strategy)
            fruitless = 0
            words = f"goes on with {strategy.choices.devices} processes, the global batch as it was"
            run.tell("scaled", f"{FRUITLESS} starts did not get past step {reached}: {words}")
        elif fruitless >= FRUITLESS:
            raise InputFault(
                who,
                lost.words,
                f"a run gets on; {fruitless} starts did not get past step {reached}",
                f"Look into {reports}; --resume goes on from the last complete checkpoint.",
            )
        restarts += 1
        run.tell("restarted", f"{strategy.choices.devices} processes start again (restart {restarts})")


def _with_a_copy_fewer(strategy: RunStrategy) -> RunStrategy:
    choices = strategy.choices
    return on_processes(strategy, choices.devices // choices.data * (choices.data - 1))


def _start(task: RankTask, run: RunFolder, count: int) -> Loss | None:
    """One start of all processes; why they ended, None where they ended well. Raises KeyboardInterrupt when stopped."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from torchsplit_core.running.rank import train_in_rank

    # The processes are forked from one that has torch loaded: a start takes no seconds, and the agent's threads and
    # sockets are not in them.
    multiprocessing.set_forkserver_preload([*PRELOADED])
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=Path(task.reports).name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(run.logs), redirects=Std.ALL),
    )
    with _environment(count), _signals_as_they_were(), _agent_log(run.logs / "agent.log"):
        try:
            elastic_launch(config, train_in_rank)(task)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            return _why(Path(task.reports), rank, failure.exitcode)
        except (EOFError, ConnectionError) as error:
            return Loss(None, f"could not be started ({type(error).__name__})", killed=True)
        except SignalException as stop:
            run.tell("stopped", f"by {stop.sigval.name}; --resume goes on from the last complete checkpoint")
            raise KeyboardInterrupt from stop
    return None


def _why(reports: Path, rank: int, exit_code: int) -> Loss:
    """Why the processes ended, from what they said and how the first of them ended."""
    told = sorted(
        (
            (json.loads(path.read_text(encoding="utf-8")), int(path.stem[5:]))
            for path in reports.glob("rank-*.json")
        ),
        key=lambda one: one[0]["time"],
    )
    for report, number in told:
        if "where" in report:
            fault = InputFault(report["where"], "", report["rule"], report["remedy"])
            fault.value = report["value"]
            fault.args = (f"{fault.where}: {fault.value} — {fault.rule}. {fault.remedy}",)
            return Loss(number, str(fault), fault)
    if exit_code < 0:
        return Loss(rank, f"was ended by {signal.Signals(-exit_code).name}", killed=True)
    words = next((report["error"] for report, number in told if number == rank), f"ended with {exit_code}")
    return Loss(rank, f"failed: {words}")


def _check_cores(count: int) -> None:
    """Raises InputFault for more processes than take turns on the cores in reasonable time."""
    cores = len(os.sched_getaffinity(0))
    if count > PROCESSES_A_CORE * cores:
        raise InputFault(
            "--processes",
            count,
            f"at most {PROCESSES_A_CORE} processes share a core, and there are {cores} cores",
            "Give fewer with --processes: the global batch stays as it is.",
        )


def _furthest(run: RunFolder) -> int:
    last = run.last_step()
    return int(last["step"]) if last else 0


@contextlib.contextmanager
def _environment(count: int) -> Iterator[None]:
    """What torch's agent and its processes need set: see docs/training-runs.md."""
    cores = len(os.sched_getaffinity(0))
    fixes = {
        # With one store for rendezvous and processes, most restarts after a kill fail.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": str(max(1, cores // count)),
        # A host's name may lead nowhere; one machine's processes meet on the loopback.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    added = {name: value for name, value in fixes.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextlib.contextmanager
def _signals_as_they_were() -> Iterator[None]:
    """The agent handles signals in its own way and leaves them so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _agent_log(path: Path) -> Iterator[None]:
    """What torch's agent says goes to a file: what users must know is said by us."""
    loggers = [logging.getLogger(name) for name in ("torch.distributed", "torch.multiprocessing")]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, (handlers, propagated) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagated
        handler.close()


@contextlib.contextmanager
def _followed(run: RunFolder, steps: int | None, progress: Progress) -> Iterator[None]:
    """Tell the progress from the lines of the steps while the run goes on."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK_S):
            if last := run.last_step():
                total = steps or run.facts().get("steps") or last["step"]
                progress(
                    min(1.0, last["step"] / total), f"step {last['step']} of {total}, loss {last['loss']:.6g}"
                )

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
