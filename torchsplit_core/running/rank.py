"""What each process of `torchsplit train` does: the client's model, data, loss and optimizer, step by step."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from torchsplit_core.files import move_into_place
from torchsplit_core.isolation import is_out_of_memory
from torchsplit_core.isolation.confinement.kernel import signal_at_parents_end
from torchsplit_core.model_source import foreign_code, load_trained, open_model, user_line
from torchsplit_core.running.adapt.kept import with_kept
from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.layout import on_processes
from torchsplit_core.running.loop import TrainingRun
from torchsplit_core.running.processes import Address, join_processes
from torchsplit_core.running.starts.stalls import Marker
from torchsplit_core.running.starts.surroundings import OVER
from torchsplit_core.running.watch.launched import Launch, keep_launch
from torchsplit_core.values import InputFault, TrainClient, last_cause, quoted
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy

Over = Literal["done", "moves"]
"""How a start is over: all steps are done, or the next one goes on with other stages."""
LATER_S, LATER_ALONE_S = 1.0, 10.0
"""A process that fails because another is gone ends this much after it, so that the other one is named. The second on
one machine, where the agent sees the other one's end and ends this one."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a process is told. `reports`: where it says why it failed; `launch`: what the run was started with.

    `agents`: where those of several machines meet, None where all processes are of this one.
    """

    source: str
    trust: bool
    strategy: RunStrategy
    options: RunOptions
    folder: str
    node: str
    reports: str
    launcher: int
    launch: Launch
    agents: Address | None


def train_in_rank(task: RankTask) -> None:
    """Train, and end this process; called in each that the launcher starts. Raises whatever ends it before that, told
    in `reports`."""
    began_s = time.time()
    _end_with(task.launcher)
    # Read when torch was loaded, in the process that this one was forked from.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    folder = RunFolder(task.folder, task.node)
    mark = Marker(Path(task.reports), int(os.environ["RANK"]), folder.node)
    mark("start")
    # Where nodes come, ranks start again in the same round: what one said before is no more.
    _report_file(Path(task.reports)).unlink(missing_ok=True)
    for path in Path(task.reports).glob(over_file("moves", "*")):
        path.unlink(missing_ok=True)
    with folder.written_by_a_rank():
        try:
            join_processes(task.agents or Path(task.reports))
            folder.tell("joined", f"process {os.getpid()}", dist.get_rank())
            _train(task, folder, mark, began_s)
        except Exception as error:
            _report(Path(task.reports), task.node, error, LATER_S if task.agents else LATER_ALONE_S)
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _train(task: RankTask, folder: RunFolder, mark: Marker, began_s: float) -> None:
    client = train_client(task.source, task.trust)
    model = open_model(client)  # type: ignore[arg-type]
    if not isinstance(model, torch.nn.Module):
        raise InputFault(
            "get_model()", f"returned a {type(model).__name__}, not an nn.Module", "Return the module."
        )
    with foreign_code("get_optimizer()"):
        optimizer = client.get_optimizer(model.parameters(), task.strategy.job.optimizer)
    with foreign_code("get_dataset()"):
        data = client.get_dataset()
    given = [with_kept(on_processes(task.strategy, dist.get_world_size()), task.options, folder.path)]
    # What the first rank has read counts: another node may be writing it.
    dist.broadcast_object_list(given, src=0)
    strategy, options = given[0]
    sampler = RandomSampler if task.options.shuffle else SequentialSampler
    run = TrainingRun(
        model, optimizer, DataLoader(data, sampler=sampler(data)),
        strategy, folder, options,
        name=task.source,
        tensor_plan=getattr(client, "tensor_plan", None),
        unused_weights=bool(getattr(client, "unused_weights", False)),
        mark=mark,
        began_s=began_s,
    )  # fmt: skip
    # Only now it is sure that the folder is gone on with by this.
    if run.rank == 0:
        keep_launch(folder.path, task.launch)

    def loss_of(outputs: Any, targets: Any) -> torch.Tensor:
        with foreign_code("get_loss()"):
            found: torch.Tensor = client.get_loss(outputs, targets)
        return found

    run.follow(loss_of)
    _end(run, Path(task.reports) / over_file("moves" if run.moves else "done", run.rank))


def _end(run: TrainingRun, over: Path) -> NoReturn:
    """End this process when the first rank has left that the start is over: whoever is killed from then on, it is.

    To end well would be to wait for torch's agent, which in turn waits for ever where one of those ranks is killed.
    """
    if run.rank == 0:
        over.touch()
    run.meet()
    # The agent of each node looks for those of its own ranks: the first one's may come late over the network.
    over.touch()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(OVER)


def train_client(source: str, trust: bool) -> TrainClient:
    """The client of a source that can be trained. Executes its file. Raises InputFault for one that lacks a method."""
    client = load_trained(source, trust)
    missing = [name for name in ("get_dataset", "get_loss", "get_optimizer") if not hasattr(client, name)]
    if missing:
        raise InputFault(
            "model source",
            f"{quoted(source)} cannot be trained: its client lacks {', '.join(missing)}",
            "Give it get_dataset(), get_loss(outputs, targets) and get_optimizer(parameters, kind).",
        )
    found: TrainClient = client
    return found


def _report(folder: Path, node: str, error: BaseException, later_s: float) -> None:
    """Say why this process ends; one whose partners are gone lets them be seen first."""
    told: dict[str, Any]
    if isinstance(error, InputFault):
        told = {"where": error.where, "problem": error.problem, "remedy": error.remedy}
    else:
        cause = last_cause(error)
        line = user_line(cause) or user_line(error)
        words = " ".join(f"{type(cause).__name__}: {cause}".split())[:500]
        told = {
            "error": words + (f" ({line})" if line else ""),
            "others": _partner_gone(error) or _partner_gone(cause),
            "short_of_memory": is_out_of_memory(error) or is_out_of_memory(cause),
        }
    # Whole or not at all: the others' end may end this process here. Where the disk is full the words are lost.
    with contextlib.suppress(OSError):
        move_into_place(_report_file(folder), json.dumps({**told, "node": node, "time": time.time()}))
    if told.get("others"):
        time.sleep(later_s)


def over_file(how: Over, rank: int | str) -> str:
    """The name of what a rank leaves in `reports` when the start is over."""
    return f"{how}-{rank}"


def _report_file(folder: Path) -> Path:
    return folder / f"rank-{os.environ['RANK']}.json"


def _partner_gone(error: BaseException) -> bool:
    """Whether another process's end is what this one fails by."""
    words = str(error)
    return isinstance(error, dist.DistError) or any(
        word in words
        for word in ("Connection closed by peer", "Connection reset", "gloo", "NCCL", "Broken pipe")
    )


def _end_with(launcher: int) -> None:
    """End this process when the launcher or the process that forked it ends, however that ends."""
    signal_at_parents_end()
    try:
        handle = os.pidfd_open(launcher)
    except ProcessLookupError:
        os._exit(1)

    def watch() -> None:
        select.select([handle], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="launcher").start()
