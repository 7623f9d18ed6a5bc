"""Start a node's processes of a run with torch's elastic agent, and start them again when one is lost."""

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
from torchsplit_core.model_source import parse_source
from torchsplit_core.running.beside import looking
from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.layout import on_each, on_processes
from torchsplit_core.running.starts.stalls import Stall, Watch, watched
from torchsplit_core.running.starts.surroundings import agent_log, environment, signals_as_they_were
from torchsplit_core.running.watch.asking import stopped_when_asked
from torchsplit_core.running.watch.exports import exported
from torchsplit_core.running.watch.gpus import gpus_told
from torchsplit_core.running.watch.launched import Launch
from torchsplit_core.values import InputFault, Progress, ignore_progress
from torchsplit_core.values.strategy.run import Exports, Nodes, RunOptions, RunStrategy, RunSummary

if TYPE_CHECKING:
    from torchsplit_core.running.rank import Over, RankTask
    from torchsplit_core.running.starts.meeting import Alone, Meeting, Round

PROCESSES_A_CORE = 4
"""More would wait for each other most of the time."""
PRELOADED = ("torchsplit_core.running.rank", "torch._dynamo", "numpy.random", "fsspec.implementations.local")
"""What each process has loaded when it starts; torch itself loads the later ones when it divides or saves."""
PRELOADED_STAGED = (
    "torchsplit_core.running.staged.pipeline",
    "torch.export._trace",
    "torch._inductor.output_code",
)
"""Beside these of a pipeline; torch loads the later ones when it traces."""
FRUITLESS, FRUITLESS_WITH_OTHERS = 2, 5
"""Starts without a new step after which a run stops; the second where ranks of other nodes are what was lost."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why the processes ended: a rank (None: what they are forked from), and in words how.

    `elsewhere`: what was lost is of another node, or the way to the others.
    """

    rank: int | None
    words: str
    fault: InputFault | None = None
    killed: bool = False
    elsewhere: bool = False
    short_of_memory: bool = False


def train(
    source: str,
    strategy: RunStrategy,
    folder: str | Path,
    *,
    options: RunOptions | None = None,
    processes: int | None = None,
    nodes: Nodes | None = None,
    resume: bool = False,
    trust: bool = False,
    exports: Exports | None = None,
    progress: Progress = ignore_progress,
) -> RunSummary:
    """Train the source's client by the strategy, in the run's folder.

    `processes`: of this machine, as many as the strategy's devices where None; its data-parallel ranks are as many as
    fit them, its global batch stays. `nodes`: this is one of several that share the folder and run this each, with as
    many processes; it goes on with those that are there. Executes the source in its own processes, with this user's
    rights. Raises InputFault for what cannot be run, a loss that is not finite, and a process that fails without end.
    """
    extras.need("train")
    options = options or RunOptions()
    parsed = parse_source(source, trust=trust)
    count = strategy.choices.devices if processes is None else processes
    if nodes and processes is None:
        count = max(1, count // nodes.most)
    numbers = range(nodes.least, nodes.most + 1) if nodes else (1,)
    fitted = on_each(strategy, options, (count * number for number in numbers))
    _check_cores(count)
    run = RunFolder(folder, nodes.name if nodes else "")
    with (
        run.shared(nodes.rendezvous, resume=resume) if nodes else run.claimed(resume=resume),
        followed(run, options.steps, progress),
        stopped_when_asked(run.path),
        exported(run.path, exports or Exports()),
        gpus_told(run.path, run.node) as gpus,
        telemetry.span(telemetry.schema.TRAIN, model=parsed.text, processes=fitted.choices.devices) as whole,
    ):
        if fitted.choices.pipeline < strategy.choices.pipeline:
            words = f"{fitted.choices.pipeline} of the strategy's {strategy.choices.pipeline} stages"
            run.tell("scaled", f"{words}, the most that divide {_processes(fitted.choices.devices)}")
        restarts = _until_done(run, parsed.text, trust, fitted, options, count, nodes)
        last = run.last_step()
        whole.set(step=last and last["step"], loss=last and last["loss"], restarts=restarts, **gpus.by_name())
    return RunSummary(last["step"] if last else 0, last["loss"] if last else None, restarts)


def _until_done(
    run: RunFolder,
    source: str,
    trust: bool,
    strategy: RunStrategy,
    options: RunOptions,
    count: int,
    nodes: Nodes | None,
) -> int:
    """Start this node's processes until they end well; how often they were started again.

    Where they are killed again and again (memory is short, say) a single machine goes on with one copy of the model
    fewer.
    """
    from torchsplit_core.running.rank import RankTask
    from torchsplit_core.running.starts.meeting import Alone, Meeting

    if nodes:
        run.tell(
            "node_joined",
            f"node {run.node}, with {_processes(count)}, meets the others at {nodes.rendezvous}",
        )
    meeting = Meeting(nodes) if nodes else Alone()
    launch = Launch(source, strategy, options)
    restarts, fruitless, furthest, token = 0, 0, _furthest(run), ""
    while True:
        this = meeting.round_after(token)
        token, reports = this.token, run.logs / f"start-{this.token}"
        reports.mkdir(exist_ok=True)
        task = RankTask(
            source, trust, strategy, options, str(run.path), run.node, str(reports), os.getpid(), launch,
            agents=nodes.address if nodes else None,
        )  # fmt: skip
        with telemetry.span(telemetry.schema.TRAIN_START, processes=count) as begun:
            lost = _start(task, run, count, meeting, this)
            # Whatever ended them since, all is written.
            over = _over(reports)
            begun.set(lost=None if over else lost.words)
        if over == "done":
            return restarts
        if over == "moves":
            fruitless, furthest = 0, _furthest(run)
            continue
        if lost.fault:
            run.tell("stopped", str(lost.fault), lost.rank)
            raise lost.fault
        reached = _furthest(run)
        fruitless = 0 if reached > furthest else fruitless + 1
        furthest = max(furthest, reached)
        who = "the processes" if lost.rank is None else f"rank {lost.rank}"
        where = "after the last step" if reached == run.facts().get("steps") else f"at step {reached + 1}"
        if lost.elsewhere:
            run.tell("others_lost", f"node {run.node} {lost.words}, {where}")
        else:
            run.tell("rank_lost", f"{who} {lost.words}, {where}", lost.rank)
        if lost.short_of_memory:
            _give_way(run, strategy, options, lost)
            fruitless = 0
        elif fruitless >= FRUITLESS and _go_back(run, f"{FRUITLESS} starts did not get past step {reached}"):
            fruitless = 0
        may_shrink = lost.killed and strategy.choices.data > 1 and not options.shares and nodes is None
        if fruitless >= FRUITLESS and may_shrink:
            strategy = _with_a_copy_fewer(strategy)
            fruitless, count = 0, strategy.choices.devices
            words = f"goes on with {_processes(count)}, the global batch as it was"
            run.tell("scaled", f"{FRUITLESS} starts did not get past step {reached}: {words}")
        elif fruitless >= (FRUITLESS_WITH_OTHERS if lost.elsewhere else FRUITLESS):
            raise InputFault(
                who,
                f"{lost.words}; {fruitless} starts did not get past step {reached}",
                f"Read the logs in {reports}, mend the cause, and resume the run.",
            )
        restarts += 1
        where = f" of node {run.node}" if nodes else ""
        run.tell("restarted", f"{_processes(count)}{where} started again (restart {restarts})")


def _over(reports: Path) -> Over | None:
    """How a start is over by what its ranks left; None where it was lost."""
    from torchsplit_core.running.rank import Over, over_file

    return next((how for how in get_args(Over) if any(reports.glob(over_file(how, "*")))), None)


def _go_back(run: RunFolder, why: str, rank: int | None = None) -> bool:
    """Where blocks of a pipeline have moved, have them go back and stay there from the next start on."""
    from torchsplit_core.running.adapt.kept import keep, read_kept

    kept = read_kept(run.path)
    if not kept.layers:
        return False
    keep(run.path, replace(kept, layers=(), stay=True, under_way=None))
    run.tell("layers_back", f"{why}: the blocks that moved go back to their stages, and stay there", rank)
    return True


def _give_way(run: RunFolder, strategy: RunStrategy, options: RunOptions, lost: Loss) -> None:
    """Have the next start use less memory. Raises InputFault where nothing smaller is left."""
    from torchsplit_core.running.adapt.kept import keep, read_kept, with_kept
    from torchsplit_core.running.adapt.memory import setting_of

    if _go_back(run, f"rank {lost.rank} ran out of memory", lost.rank):
        return
    world = run.facts().get("processes") or strategy.choices.devices
    setting = setting_of(with_kept(on_processes(strategy, world), options, run.path)[0]).next()
    if setting is None:
        raise InputFault(
            f"rank {lost.rank}",
            f"{lost.words}, even in passes of one sample with every layer computed again",
            "Shard the weights (shard: fsdp), use more devices or a smaller model, and resume the run.",
        )
    keep(
        run.path,
        replace(read_kept(run.path), micro_batch=setting.micro_batch, recompute=setting.recompute),
    )
    words = f"rank {lost.rank} ran out of memory: goes on with {setting.words()}, the global batch as it was"
    run.tell("out_of_memory", words, lost.rank)


def _with_a_copy_fewer(strategy: RunStrategy) -> RunStrategy:
    choices = strategy.choices
    return on_processes(strategy, choices.devices // choices.data * (choices.data - 1))


def _start(task: RankTask, run: RunFolder, count: int, meeting: Meeting | Alone, this: Round) -> Loss:
    """One start of all processes; how they ended, which they never do well. Raises KeyboardInterrupt when stopped."""
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from torchsplit_core.running.rank import train_in_rank

    # The processes are forked from one that has torch loaded: a start takes no seconds, and the agent's threads and
    # sockets are not in them.
    staged = PRELOADED_STAGED if task.strategy.choices.pipeline > 1 else ()
    multiprocessing.set_forkserver_preload([*PRELOADED, *staged])
    reports = Path(task.reports)
    config = LaunchConfig(
        **this.settings,
        nproc_per_node=count,
        run_id=this.token,
        max_restarts=0,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(run.logs), redirects=Std.ALL),
    )
    watch = Watch(reports, run.node, task.options.stall_limit_s)
    with (
        environment(count, meeting.environment()),
        signals_as_they_were(),
        agent_log(run.logs / f"agent-{run.node}.log"),
        watched(watch, run),
    ):
        try:
            elastic_launch(config, train_in_rank)(task)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            lost = _why(reports, rank, failure.exitcode, watch.named, run.node)
            return lost if this.settings["max_nodes"] > 1 else replace(lost, elsewhere=False)
        except (EOFError, ConnectionError) as error:
            return Loss(None, f"could not be started ({type(error).__name__})", killed=True)
        except (RendezvousError, DistError) as error:
            return Loss(None, f"lost the others ({type(error).__name__})", elsewhere=True)
        except SignalException as stop:
            run.tell(
                "stopped", f"node {run.node} was stopped by {stop.sigval.name} after step {_furthest(run)}"
            )
            raise KeyboardInterrupt from stop
    return Loss(None, "ended without a message")


def _why(reports: Path, rank: int, exit_code: int, stalled: dict[int, Stall], node: str) -> Loss:
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
            fault = InputFault(report["where"], report["problem"], report["remedy"])
            return Loss(number, str(fault), fault)
    if rank in stalled:
        return Loss(rank, "stalled and was ended", killed=True)
    # Where one is short of memory the others fail by its absence, whichever of them ended first.
    here = [(report, number) for report, number in told if report["node"] == node]
    short = next((number for report, number in here if report.get("short_of_memory")), rank)
    rank = rank if exit_code < 0 else short
    own = next((report for report, number in told if number == rank), {"error": f"ended with {exit_code}"})
    if own.get("others"):
        return Loss(rank, f"lost the others ({own['error']})", elsewhere=True)
    if exit_code < 0:
        return Loss(rank, f"was ended by {signal.Signals(-exit_code).name}", killed=True)
    return Loss(rank, f"failed: {own['error']}", short_of_memory=bool(own.get("short_of_memory")))


def _check_cores(count: int) -> None:
    """Raises InputFault for more processes than take turns on the cores in reasonable time."""
    cores = len(os.sched_getaffinity(0))
    if count > PROCESSES_A_CORE * cores:
        raise InputFault(
            "--processes",
            f"is {count}, above the {PROCESSES_A_CORE * cores} that this machine takes ({PROCESSES_A_CORE} a core)",
            "Give fewer with --processes: the global batch stays as it is.",
        )


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _furthest(run: RunFolder) -> int:
    last = run.last_step()
    return int(last["step"]) if last else 0


@contextlib.contextmanager
def followed(run: RunFolder, steps: int | None, progress: Progress) -> Iterator[None]:
    """Tell the progress from the lines of the steps while the run goes on."""

    def look() -> None:
        if last := run.last_step():
            total = steps or run.facts().get("steps") or last["step"]
            progress(
                min(1.0, last["step"] / total), f"step {last['step']} of {total}, loss {last['loss']:.6g}"
            )

    with looking(look, "progress"):
        yield
