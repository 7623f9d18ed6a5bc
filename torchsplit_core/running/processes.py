"""The processes of a run meet, and see that they are of one kind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from torchsplit_core.files import move_into_place
from torchsplit_core.values import InputFault

LOOPBACK, LOOK_S = "127.0.0.1", 0.01


Address = tuple[str, int]
"""A host and a port."""


def join_processes(meet: Path | Address | None = None) -> None:
    """Meet the processes that torchrun started, or be alone. Gradients go over NCCL on GPUs, over Gloo else.

    `meet`: by what the processes find the first one's store: on one machine a folder of this start alone, on several
    the store at which their agents meet. The agent's way is a port that is free when it looks, and perhaps taken when
    the first process comes to serve there.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ and meet:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with _met_by_folder(meet, rank) if isinstance(meet, Path) else _met_by_store(meet, rank) as store:
            dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    elif "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


@contextlib.contextmanager
def _met_by_folder(folder: Path, rank: int) -> Iterator[dist.TCPStore]:
    """The first process serves it at a port that the system gives, and says which; the agent ends who waits in vain."""
    told = folder / "port"
    if rank == 0:
        store = _served(LOOPBACK)
        move_into_place(told, str(store.port))
    else:
        while not told.exists():
            time.sleep(LOOK_S)
        store = dist.TCPStore(LOOPBACK, int(told.read_text(encoding="utf-8")), is_master=False)
    yield store


@contextlib.contextmanager
def _met_by_store(agents: Address, rank: int) -> Iterator[dist.TCPStore]:
    """The same, said at the agents' store: a folder that machines share may show a new file late."""
    host, known = os.environ["MASTER_ADDR"], dist.TCPStore(*agents, is_master=False, wait_for_workers=False)
    # The agents choose a port each time that they start the processes of a round: it stands for this time.
    name = f"torchsplit.port/{os.environ['TORCHELASTIC_RUN_ID']}/{host}:{os.environ['MASTER_PORT']}"
    if rank > 0:
        yield dist.TCPStore(host, int(known.get(name)), is_master=False)
        return
    store = _served(host)
    known.set(name, str(store.port))
    yield store
    # All have read it: should the agents choose the same one again, nobody finds this.
    known.delete_key(name)


def _served(host: str) -> dist.TCPStore:
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)


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
                f"has torch {version}, but rank 0 (node {told[0][0]}) has {first}",
                f"Install torch {first} there.",
            )
    return list(dict.fromkeys(where for where, _ in told))
