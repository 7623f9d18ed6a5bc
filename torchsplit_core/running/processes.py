"""The processes of a run meet, and see that they are of one kind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from torchsplit_core.files import move_into_place
from torchsplit_core.values import InputFault

LOOPBACK, LOOK_S = "127.0.0.1", 0.01


def join_processes(meet: Path | None = None) -> None:
    """Meet the processes that torchrun started, or be alone. Gradients go over NCCL on GPUs, over Gloo else.

    `meet`: a folder of this start alone, by which the processes of one machine find the first one's store. The agent's
    way is a port that is free when it looks, and perhaps taken when the first process comes to serve there.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ and meet:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, store=_store(meet / "port", rank), rank=rank, world_size=world)
    elif "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def _store(told: Path, rank: int) -> dist.TCPStore:
    """The first process serves it at a port that the system gives, and says which; the agent ends who waits in vain."""
    if rank == 0:
        store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
        move_into_place(told, str(store.port))
        return store
    while not told.exists():
        time.sleep(LOOK_S)
    return dist.TCPStore(LOOPBACK, int(told.read_text(encoding="utf-8")), is_master=False)


def check_alike(node: str) -> list[str]:
    """The names of all ranks' nodes, each once, in the order of the ranks.

    Raises InputFault on every rank where they do not have the same torch.
    """
    told: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(told, (node, str(torch.__version__)))
    first = told[0][1]
    for rank, (where, version) in enumerate(told):
        if version != first:
            raise InputFault(
                f"rank {rank} (node {where})",
                f"torch {version}",
                f"all ranks of a run have one version of torch, and rank 0 (node {told[0][0]}) has {first}",
                "Install that version there.",
            )
    return list(dict.fromkeys(where for where, _ in told))
