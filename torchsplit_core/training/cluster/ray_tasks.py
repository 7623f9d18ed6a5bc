"""A Ray cluster: connect to it, check that it has what is requested, run a function on it as a task."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from torchsplit_core.values import InputFault, quoted

T = TypeVar("T")
CONNECT_TIMEOUT_S = 5.0
"""Seconds within which the head of a cluster answers."""


@contextlib.contextmanager
def ray_cluster() -> Iterator[Any]:
    """Ray, connected to the cluster that RAY_ADDRESS names or that runs on this machine.

    Raises InputFault if Ray is not installed or no cluster answers.
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
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        if address != "auto":
            # Ray itself would try for a minute.
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, OverflowError) as error:
        problem = f"is {quoted(address)}, where no Ray cluster answers"
        if address == "auto":
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


def count_matching_nodes(nodes: Sequence[Mapping[str, Any]], needed: Mapping[str, int], minimum: int) -> int:
    """How many nodes of the cluster (`ray.nodes()`) have at least `needed` of each resource, busy or not.

    Raises InputFault if they are fewer than `minimum`: Ray would wait for them forever, without a message.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    fitting = sum(all(node.get(name, 0) >= count for name, count in needed.items()) for node in alive)
    if fitting < minimum:
        available = "; ".join(
            describe_resources({name: node.get(name, 0) for name in needed}) for node in alive
        )
        raise InputFault(
            "the Ray cluster",
            f"has {fitting} nodes with {describe_resources(needed)}, needs at least {minimum} (its "
            f"nodes have: {available})",
            "Add nodes, or ask for less.",
        )
    return fitting


def describe_resources(resources: Mapping[str, float]) -> str:
    """The resources as text: `4 CPU and 1 GPU`."""
    return " and ".join(f"{count:g} {name}" for name, count in resources.items())


def run_on_cluster(
    work: Callable[..., T], *given: Any, cores: int = 1, gpus: int | None = 0, **named: Any
) -> T:
    """The result of a function, run once as a task on a node with `cores` and `gpus` (None: one if any node has one).

    The node's TorchSplit must have the function and the types of its values, too. Raises InputFault as the function
    does, and if no node has these resources.
    """
    with ray_cluster() as ray:
        nodes = ray.nodes()
        if gpus is None:
            gpus = int(any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in nodes))
        count_matching_nodes(nodes, {"CPU": cores, **({"GPU": gpus} if gpus else {})}, 1)
        task = ray.remote(num_cpus=cores, num_gpus=gpus)(work).remote(*given, **named)
        try:
            result: T = ray.get(task)
            return result
        except KeyboardInterrupt:
            ray.cancel(task)
            raise
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
