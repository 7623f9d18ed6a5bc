"""The work of each process of `torchsplit train`: train the client's model with its data, loss and optimizer."""

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
from torchsplit_core.isolation.sandbox.kernel import set_parent_death_signal
from torchsplit_core.model_source import foreign_code, load_trainable, open_model, user_line
from torchsplit_core.training.attempts.agent_environment import ATTEMPT_OVER_EXIT_CODE
from torchsplit_core.training.attempts.hang_detection import HeartbeatWriter
from torchsplit_core.training.feeding.choice import steps_of_pass
from torchsplit_core.training.held_out.evaluation import held_out_of_client
from torchsplit_core.training.loop import TrainingRun
from torchsplit_core.training.monitor.launch_record import LaunchRecord, save_launch
from torchsplit_core.training.parallelize import data_rank
from torchsplit_core.training.process_group import Address, join_process_group
from torchsplit_core.training.rebalance.overrides import fit_attempt
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.training.validation import can_validate
from torchsplit_core.values import InputFault, TrainClient, last_cause, quoted
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy

ExitReason = Literal["done", "moves"]
"""How an attempt ended: all steps are done, or the next attempt goes on with other stages."""
VALIDATE = "validate"
"""File that the first rank leaves in `reports` if the finished model can be measured on held-out samples."""
PEER_FAILURE_WAIT_S, PEER_FAILURE_WAIT_LOCAL_S = 1.0, 10.0
"""Seconds that a process waits before it ends because a peer is gone, so that the peer is named as the cause. The
second number is for one machine, where the agent sees the peer end and ends this process."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """The task of a rank. `reports`: where it writes why it failed; `launch`: what the run was started with.

    `agents`: address of the store where the agents of several machines meet; None if all processes are on this one.
    """

    source: str
    trust: bool
    strategy: RunStrategy
    options: RunOptions
    folder: str
    node: str
    reports: str
    launcher: int
    launch: LaunchRecord
    agents: Address | None


def train_in_rank(task: RankTask) -> None:
    """Train, then end this process; the entry point of each rank. An error before the end is written to `reports` and
    raised."""
    began_s = time.time()
    _exit_with_parent(task.launcher)
    # torch read this variable when the fork server loaded it, so the number is set again.
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    folder = RunFolder(task.folder, task.node)
    heartbeat = HeartbeatWriter(Path(task.reports), int(os.environ["RANK"]), folder.node)
    heartbeat("start")
    # When a node joins, ranks restart within the same round: their earlier reports are void.
    _report_file(Path(task.reports)).unlink(missing_ok=True)
    for path in Path(task.reports).glob(exit_file("moves", "*")):
        path.unlink(missing_ok=True)
    with folder.rank_lock():
        try:
            join_process_group(task.agents or Path(task.reports))
            folder.log_event("joined", f"process {os.getpid()}", dist.get_rank())
            _train(task, folder, heartbeat, began_s)
        except Exception as error:
            _report(
                Path(task.reports),
                task.node,
                error,
                PEER_FAILURE_WAIT_S if task.agents else PEER_FAILURE_WAIT_LOCAL_S,
            )
            raise
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def _train(task: RankTask, folder: RunFolder, heartbeat: HeartbeatWriter, began_s: float) -> None:
    client = load_train_client(task.source, task.trust)
    model = open_model(client)  # type: ignore[arg-type]
    if not isinstance(model, torch.nn.Module):
        raise InputFault(
            "get_model()", f"returned a {type(model).__name__}, not an nn.Module", "Return the module."
        )
    with foreign_code("get_optimizer()"):
        optimizer = client.get_optimizer(model.parameters(), task.strategy.job.optimizer)
    fitted = [fit_attempt(task.strategy, task.options, folder.path, dist.get_world_size())]
    # The first rank's reading counts for all: another node may be writing the file.
    dist.broadcast_object_list(fitted, src=0)
    strategy, options = fitted[0]
    loader = _loader_of(client, strategy, options)
    scheduler = None
    if hasattr(client, "get_scheduler") and options.update.schedule is None:
        steps = folder.facts().get("schedule_steps") or options.steps
        steps = steps or steps_of_pass(loader, strategy.job.global_batch)
        with foreign_code("get_scheduler()"):
            scheduler = client.get_scheduler(optimizer, steps)
    held_out = None
    if options.validation.every is not None:
        held_out = held_out_of_client(client, strategy.choices.micro_batch)
    run = TrainingRun(
        model, optimizer, loader,
        strategy, folder, options,
        name=task.source,
        tensor_plan=getattr(client, "tensor_plan", None),
        context_plan=getattr(client, "context_plan", None),
        expert_plan=getattr(client, "expert_plan", None),
        unused_weights=bool(getattr(client, "unused_weights", False)),
        scheduler=scheduler,
        held_out=held_out,
        heartbeat=heartbeat,
        began_s=began_s,
    )  # fmt: skip
    # Only now is it certain that this launch goes on in this folder.
    if run.rank == 0:
        save_launch(folder.path, task.launch)

    def loss_of(outputs: Any, targets: Any) -> torch.Tensor:
        with foreign_code("get_loss()"):
            loss: torch.Tensor = client.get_loss(outputs, targets)
        return loss

    run.train(loss_of)
    if run.rank == 0 and not run.repartition and held_out is None and can_validate(client):
        (Path(task.reports) / VALIDATE).touch()
    _exit(run, Path(task.reports) / exit_file("moves" if run.repartition else "done", run.rank))


def _loader_of(client: TrainClient, strategy: RunStrategy, options: RunOptions) -> DataLoader[Any]:
    """The client's own loader of this rank's part of the data, or one over its samples."""
    choices = strategy.choices
    if hasattr(client, "get_loader"):
        batch = min(choices.micro_batch, -(-strategy.job.global_batch // choices.data))
        with foreign_code("get_loader()"):
            loader: DataLoader[Any] = client.get_loader(
                data_rank(choices, dist.get_rank()), choices.data, batch
            )
        return loader
    with foreign_code("get_dataset()"):
        data = client.get_dataset()
    sampler = RandomSampler if options.shuffle else SequentialSampler
    # A new process would not know the classes of the client's file.
    context = "fork" if options.workers else None
    return DataLoader(
        data, sampler=sampler(data), num_workers=options.workers, multiprocessing_context=context
    )


def _exit(run: TrainingRun, exit_marker: Path) -> NoReturn:
    """End this process once the first rank has marked the attempt as over; a rank killed after that changes nothing.

    A normal exit would wait for torch's agent, which in turn waits forever if one of those ranks is killed.
    """
    if run.rank == 0:
        exit_marker.touch()
    run.barrier()
    # Each node's agent looks for the files of its own ranks; the first rank's file may arrive late over the network.
    exit_marker.touch()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ATTEMPT_OVER_EXIT_CODE)


def load_train_client(source: str, trust: bool) -> TrainClient:
    """The trainable client of a source. Executes the source's file. Raises InputFault if the client lacks a method."""
    client = load_trainable(source, trust)
    data = "get_loader" if hasattr(client, "get_loader") else "get_dataset"
    missing = [name for name in (data, "get_loss", "get_optimizer") if not hasattr(client, name)]
    if missing:
        raise InputFault(
            "model source",
            f"{quoted(source)} cannot be trained: its client lacks {', '.join(missing)}",
            "Give it get_dataset(), get_loss(outputs, targets) and get_optimizer(parameters, kind).",
        )
    checked: TrainClient = client
    return checked


def _report(folder: Path, node: str, error: BaseException, wait_s: float) -> None:
    """Write why this process ends; if its peers are gone, wait so that their end is seen first."""
    report: dict[str, Any]
    if isinstance(error, InputFault):
        report = {"where": error.where, "problem": error.problem, "remedy": error.remedy}
    else:
        cause = last_cause(error)
        line = user_line(cause) or user_line(error)
        words = " ".join(f"{type(cause).__name__}: {cause}".split())[:500]
        report = {
            "error": words + (f" ({line})" if line else ""),
            "others": _is_peer_failure(error) or _is_peer_failure(cause),
            "short_of_memory": is_out_of_memory(error) or is_out_of_memory(cause),
        }
    # Atomic, since the peers' end may end this process here. If the disk is full, the report is lost.
    with contextlib.suppress(OSError):
        move_into_place(_report_file(folder), json.dumps({**report, "node": node, "time": time.time()}))
    if report.get("others"):
        time.sleep(wait_s)


def exit_file(reason: ExitReason, rank: int | str) -> str:
    """Name of the file that a rank leaves in `reports` when the attempt is over."""
    return f"{reason}-{rank}"


def _report_file(folder: Path) -> Path:
    return folder / f"rank-{os.environ['RANK']}.json"


def _is_peer_failure(error: BaseException) -> bool:
    """Whether this process failed because another one ended."""
    words = str(error)
    return isinstance(error, dist.DistError) or any(
        word in words
        for word in ("Connection closed by peer", "Connection reset", "gloo", "NCCL", "Broken pipe")
    )


def _exit_with_parent(launcher: int) -> None:
    """End this process when the launcher, or the process that forked it, ends for any reason."""
    set_parent_death_signal()
    try:
        handle = os.pidfd_open(launcher)
    except ProcessLookupError:
        os._exit(1)

    def wait_for_parent() -> None:
        select.select([handle], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_for_parent, daemon=True, name="launcher").start()
