"""The nodes of a run: their number and what each has, from the request and the strategy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torchsplit_core.training.fitted_strategy import fit_to_world_sizes
from torchsplit_core.values import InputFault, point_type
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy

DEFAULT_CORES = 4
"""Default cores of a process that has a GPU: it fetches samples and writes checkpoints."""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The requested nodes; None: the strategy's value, or a default. `gpus`: whether each process has a GPU."""

    nodes: tuple[int, int] | None = None
    processes: int | None = None
    cores: int | None = None
    gpus: bool = True


@dataclass(frozen=True, slots=True)
class Fleet:
    """`least` to `most` equal nodes of `processes` processes, with `cores` cores each.

    `gpu`: type of the GPUs, one per process, "" if it is not known, None for processes on cores only.
    """

    least: int
    most: int
    processes: int
    cores: int
    gpu: str | None

    @property
    def description(self) -> str:
        """The fleet as text: `2 to 4 nodes of 8 GPUs`."""
        number = f"{self.least} to {self.most}" if self.least < self.most else str(self.most)
        nodes = f"{number} node{'s' * (self.most > 1)}"
        if self.gpu is not None:
            return f"{nodes} of {self.processes} GPU{'s' * (self.processes > 1)}"
        return f"{nodes} of {self.processes} process{'es' * (self.processes > 1)} on cores"


def fleet_of(given: Any, strategy: RunStrategy, options: RunOptions, requested: ResourceRequest) -> Fleet:
    """The nodes of a run by a strategy; `given` is the value of its file.

    Unset numbers follow the fleet of a strategy request. Raises InputFault as `train` does if some number of these
    nodes could not run the strategy, and for a fleet of unequal nodes.
    """
    (least, most), processes = _counts(given, strategy.choices.devices, requested.nodes, requested.processes)
    fit_to_world_sizes(strategy, options, (processes * number for number in range(least, most + 1)))
    kind = given.fleet[0].type if isinstance(given, StrategyRequest) else ""
    cpu_type = re.fullmatch(r"CPU-(\d{1,4})c", kind)
    cores = (
        requested.cores
        if requested.cores is not None
        else int(cpu_type.group(1))
        if cpu_type
        else DEFAULT_CORES
    )
    if cores < 1:
        raise InputFault(
            "--cores", f"is {cores}, below the least value 1", "Give each process at least one core."
        )
    without_gpus = not requested.gpus or point_type(kind) != kind
    return Fleet(
        least, most, processes, cores, None if without_gpus else re.split(r"[^a-z0-9]", kind.lower())[0]
    )


def _counts(
    given: Any, devices: int, nodes: tuple[int, int] | None, processes: int | None
) -> tuple[tuple[int, int], int]:
    """Least and most nodes, and the processes of each, for a strategy of `devices` devices.

    Raises InputFault if neither is given and the strategy's file does not tell, and if they do not fit.
    """
    if isinstance(given, StrategyRequest):
        if len(given.fleet) > 1:
            raise InputFault(
                "the strategy's fleet",
                f"has {len(given.fleet)} kinds of nodes, but the nodes of a run are equal",
                "Find a strategy for one kind of node.",
            )
        if processes is None and devices % given.fleet[0].gpus_per_node == 0:
            processes = given.fleet[0].gpus_per_node
    if nodes is None:
        if processes is None or processes < 1 or devices % processes:
            why = f"the {devices} devices of the strategy make no equal nodes of {processes} processes"
            if processes is None:
                why = f"the strategy does not say how its {devices} devices lie on nodes"
            raise InputFault(
                "--nnodes",
                f"is missing, and {why}",
                "Give --nnodes MIN:MAX, and --processes for those of a node.",
            )
        nodes = (devices // processes,) * 2
    if not 1 <= nodes[0] <= nodes[1]:
        wrong = "below the least value 1" if nodes[0] < 1 else "the most below the least"
        raise InputFault("--nnodes", f"is {nodes[0]}:{nodes[1]}, {wrong}", "Give MIN:MAX, for example 1:2.")
    if processes is None:
        if devices % nodes[1]:
            raise InputFault(
                "--nnodes",
                f"is {nodes[1]}, which does not divide the strategy's {devices} devices",
                "Give --processes for those of a node.",
            )
        processes = devices // nodes[1]
    if processes < 1:
        raise InputFault(
            "--processes", f"is {processes}, below the least value 1", "Give each node at least one process."
        )
    return nodes, processes
