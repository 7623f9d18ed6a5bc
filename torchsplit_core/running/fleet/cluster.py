"""A Ray cluster: the way to it, whether it has room for what is asked, one function as a task on it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torchsplit_core.values import InputFault, quoted

T = TypeVar("T")
ANSWER_S = 5.0
"""In which the head of a cluster answers."""


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """Ray, connected to the cluster that RAY_ADDRESS names or that runs on this machine.

    Raises InputFault where Ray is not installed or no cluster answers.
    """
    try:
        import ray
    except ImportError as error:
        raise InputFault(
            "--engine",
            "is ray, but the package ray is not installed",
            "Install it: pip install 'torchsplit[ray]'.",
        ) from error
    if ray.is_initialized():
        yield ray
        return
    told = os.environ.get("RAY_ADDRESS", "auto")
    try:
        if told != "auto":
            # Ray itself would try for a minute.
            host, _, port = told.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, OverflowError) as error:
        problem = f"is {quoted(told)}, where no Ray cluster answers"
        if told == "auto":
            problem = "is not set, and no Ray cluster runs on this machine"
        raise InputFault(
            "RAY_ADDRESS",
            problem,
            "Start a cluster with `ray start --head`, or give HOST:PORT of one's head.",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def nodes_with(nodes: Sequence[Mapping[str, Any]], needed: Mapping[str, int], least: int) -> int:
    """How many nodes of the cluster (`ray.nodes()`) have so much of each resource, whatever else they do now.

    Raises InputFault where they are fewer than `least`: Ray would wait for them for ever, without a word.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    fitting = sum(all(node.get(name, 0) >= count for name, count in needed.items()) for node in alive)
    if fitting < least:
        there = "; ".join(resource_words({name: node.get(name, 0) for name in needed}) for node in alive)
        raise InputFault(
            "the Ray cluster",
            f"has {fitting} nodes with {resource_words(needed)}, needs at least {least} (its nodes have: {there})",
            "Add nodes, or ask for less.",
        )
    return fitting


def resource_words(resources: Mapping[str, float]) -> str:
    """As people say them."""
    return " and ".join(f"{count:g} {name}" for name, count in resources.items())


def on_cluster(work: Callable[..., T], *given: Any, cores: int = 1, gpus: int | None = 0, **named: Any) -> T:
    """What a function gives, run once as a task on a node with so many cores and GPUs (None: one where there is one).

    Function and values must be such that the node's TorchSplit has them too. Raises InputFault as the function does,
    and where no node has so much.
    """
    with ray_cluster() as ray:
        nodes = ray.nodes()
        if gpus is None:
            gpus = int(any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in nodes))
        nodes_with(nodes, {"CPU": cores, **({"GPU": gpus} if gpus else {})}, 1)
        task = ray.remote(num_cpus=cores, num_gpus=gpus)(work).remote(*given, **named)
        try:
            found: T = ray.get(task)
            return found
        except KeyboardInterrupt:
            ray.cancel(task)
            raise
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
