"""Join the processes of a run into a group, and check that all have the same torch."""

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

LOOPBACK, POLL_S = "127.0.0.1", 0.01


Address = tuple[str, int]
"""A host and a port."""


def join_process_group(rendezvous: Path | Address | None = None) -> None:
    """Join the processes that torchrun started, or run alone. Gradients go over NCCL on GPUs, otherwise over Gloo.

    `rendezvous`: how the processes find the first rank's store: on one machine by a folder of this attempt only, on
    several by the store at which their agents meet. The agent itself would pick a port that is free when it looks, but
    may be taken when the first rank starts to serve there.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ and rendezvous:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with (
            _store_by_folder(rendezvous, rank)
            if isinstance(rendezvous, Path)
            else _store_by_agents(rendezvous, rank) as store
        ):
            dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    elif "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


@contextlib.contextmanager
def _store_by_folder(folder: Path, rank: int) -> Iterator[dist.TCPStore]:
    """The first rank's store, at a port that the system assigns and a file names; the agent ends ranks left waiting."""
    port_file = folder / "port"
    if rank == 0:
        store = _serve_store(LOOPBACK)
        move_into_place(port_file, str(store.port))
    else:
        while not port_file.exists():
            time.sleep(POLL_S)
        store = dist.TCPStore(LOOPBACK, int(port_file.read_text(encoding="utf-8")), is_master=False)
    yield store


@contextlib.contextmanager
def _store_by_agents(agents: Address, rank: int) -> Iterator[dist.TCPStore]:
    """The same with the port in the agents' store: in a folder that machines share, a new file may show late."""
    host, agent_store = (
        os.environ["MASTER_ADDR"],
        dist.TCPStore(*agents, is_master=False, wait_for_workers=False),
    )
    # The agents choose a port whenever they start the processes of a round, so that it identifies this start.
    name = f"torchsplit.port/{os.environ['TORCHELASTIC_RUN_ID']}/{host}:{os.environ['MASTER_PORT']}"
    if rank > 0:
        yield dist.TCPStore(host, int(agent_store.get(name)), is_master=False)
        return
    store = _serve_store(host)
    agent_store.set(name, str(store.port))
    yield store
    # All have read it: if the agents choose the same port again, no rank must find this entry.
    agent_store.delete_key(name)


def _serve_store(host: str) -> dist.TCPStore:
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)


def check_same_torch(node: str) -> list[str]:
    """The names of all ranks' nodes, each once, in rank order.

    Raises InputFault on every rank if the ranks do not have the same torch.
    """
    gathered: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(gathered, (node, str(torch.__version__)))
    first = gathered[0][1]
    for rank, (where, version) in enumerate(gathered):
        if version != first:
            raise InputFault(
                f"rank {rank} (node {where})",
                f"has torch {version}, but rank 0 (node {gathered[0][0]}) has {first}",
                f"Install torch {first} there.",
            )
    return list(dict.fromkeys(where for where, _ in gathered))
