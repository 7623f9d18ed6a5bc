"""The processes of a run meet, and see that they are of one kind."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from torchsplit_core.values import InputFault


def join_processes() -> None:
    """Meet the processes that torchrun started, or be alone. Gradients go over NCCL on GPUs, over Gloo else."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


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
