"""A run on equal nodes: how many there are, what each has, and the command that each runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsplit_core.deployment.names import cluster_names
from torchsplit_core.files import write_text
from torchsplit_core.model_source import ModelSource, parse_source
from torchsplit_core.running.adapt.speed import check_balance
from torchsplit_core.running.layout import on_processes, run_strategy
from torchsplit_core.running.shares import check_shares
from torchsplit_core.running.watch.exports import Exports
from torchsplit_core.values import InputFault, point_type
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.values.strategy.run import RunOptions
from torchsplit_core.values.training import Precision

CORES = 4
"""Of a process that has a GPU, where nobody says: it fetches its samples and writes checkpoints."""


@dataclass(frozen=True, slots=True)
class FleetJob:
    """A run of `least` to `most` nodes of `processes` each, which start the same command.

    `name`: a DNS label that begins with a letter (RFC 1035). `options`: of `train`, without what a cluster says:
    strategy, folder, nodes and where they meet. `strategy`: the text of its file. `cores`: of a process. `gpu`: the
    type of the GPUs, "" where it is not known, None for processes on cores alone.
    """

    name: str
    source: ModelSource
    options: tuple[str, ...]
    strategy: str
    least: int
    most: int
    processes: int
    cores: int
    gpu: str | None

    @property
    def words(self) -> str:
        """Its nodes."""
        number = f"{self.least} to {self.most}" if self.least < self.most else str(self.most)
        nodes = f"{number} node{'s' * (self.most > 1)}"
        if self.gpu is not None:
            return f"{nodes} of {self.processes} GPU{'s' * (self.processes > 1)}"
        return f"{nodes} of {self.processes} process{'es' * (self.processes > 1)} on cores"


@dataclass(frozen=True, slots=True)
class Pods:
    """What a Kubernetes cluster calls things: the image that has TorchSplit, the volume claim that all pods share.

    Raises InputFault for what is no name of such a thing.
    """

    image: str = "torchsplit-train:latest"
    claim: str = "torchsplit-runs"

    def __post_init__(self) -> None:
        # distribution/reference: a name with an optional registry, then a tag or a digest.
        image = r"[a-z0-9]+([._:/-]+[a-zA-Z0-9_]+)*(@sha256:[0-9a-f]{64})?"
        if len(self.image) > 255 or not re.fullmatch(image, self.image):
            raise InputFault(
                "--image",
                self.image,
                "it is the name of a container image",
                "For example registry/torchsplit:1.",
            )
        if len(self.claim) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", self.claim):
            rule = "it is the name of a PersistentVolumeClaim: lower-case letters, digits, hyphens and dots"
            raise InputFault("--claim", self.claim, rule, "For example torchsplit-runs.")


def fleet_job(
    source: str,
    given: Any,
    folder: str | Path,
    *,
    options: RunOptions,
    candidate: int = 1,
    precision: Precision | None = None,
    nodes: tuple[int, int] | None = None,
    processes: int | None = None,
    cores: int | None = None,
    trust: bool = False,
    exports: Exports | None = None,
) -> FleetJob:
    """A run of that source by a strategy's value (see `run_strategy`), called after its folder.

    `nodes`: at least, at most; `processes` of each; where they are not said, those of a request's fleet. Raises
    InputFault as `train` does for what no number of these nodes could run, and for a fleet of unequal nodes.
    """
    strategy = run_strategy(given, candidate, precision)
    nodes, processes = node_counts(given, strategy.choices.devices, nodes, processes)
    for number in range(nodes[0], nodes[1] + 1):
        fitted = on_processes(strategy, processes * number)
        check_shares(options.shares, fitted.choices.data)
        if options.balance:
            check_balance(fitted)
    kind = given.fleet[0].type if isinstance(given, StrategyRequest) else ""
    alone = point_type(kind) != kind
    told = re.fullmatch(r"CPU-(\d{1,4})c", kind)
    cores = cores if cores is not None else int(told.group(1)) if told else CORES
    if cores < 1:
        raise InputFault("--cores", cores, "a process has 1 core or more", "Correct it.")
    parsed = parse_source(source, trust=trust)
    if parsed.kind == "pt2":
        rule = "what is trained has data, a loss and an optimizer, and a .pt2 has none"
        raise InputFault("model source", source, rule, "Give a sample or FILE.py:NAME.")
    return FleetJob(
        name=job_name(Path(folder).absolute().name),
        source=parsed,
        options=(*_options(options, candidate, precision, trust), *_exports(exports)),
        strategy=write_text(given),
        least=nodes[0],
        most=nodes[1],
        processes=processes,
        cores=cores,
        gpu=None if alone else re.split(r"[^a-z0-9]", kind.lower())[0],
    )


def node_counts(
    given: Any, devices: int, nodes: tuple[int, int] | None, processes: int | None
) -> tuple[tuple[int, int], int]:
    """Least and most nodes, and the processes of each, for a strategy of so many devices.

    Raises InputFault where neither is said and the strategy's file does not tell, and where they do not fit.
    """
    if isinstance(given, StrategyRequest):
        if len(given.fleet) > 1:
            raise InputFault(
                "the strategy's fleet",
                f"{len(given.fleet)} entries",
                "a run has equal nodes",
                "Find a strategy for one kind of nodes.",
            )
        if processes is None and devices % given.fleet[0].gpus_per_node == 0:
            processes = given.fleet[0].gpus_per_node
    if nodes is None:
        if processes is None or processes < 1 or devices % processes:
            raise InputFault(
                "--nnodes",
                processes,
                f"it says how the {devices} devices of the strategy lie on nodes",
                "Give --nnodes MIN:MAX, and --processes for those of a node.",
            )
        nodes = (devices // processes,) * 2
    if not 1 <= nodes[0] <= nodes[1]:
        rule = "it is MIN:MAX, 1 or more, the second not less"
        raise InputFault("--nnodes", f"{nodes[0]}:{nodes[1]}", rule, "For example 1:2.")
    if processes is None:
        if devices % nodes[1]:
            rule = f"nodes are equal, and the strategy has {devices} devices"
            raise InputFault("--nnodes", nodes[1], rule, "Give --processes for those of a node.")
        processes = devices // nodes[1]
    if processes < 1:
        raise InputFault("--processes", processes, "a node has 1 or more", "Correct it.")
    return nodes, processes


def job_name(text: str) -> str:
    """A name for a job, of a folder's: with what Kubernetes adds for pods it has at most 63 characters."""
    label = cluster_names({text: (text,)})[text]
    return label if label[0].isalpha() else cluster_names({text: ("run", text)})[text]


def _options(options: RunOptions, candidate: int, precision: Precision | None, trust: bool) -> Sequence[str]:
    """What is not as it is by default; each with its value in one word."""
    default = RunOptions()
    found: list[str] = []
    if candidate != 1:
        found.append(f"--candidate={candidate}")
    if precision:
        found.append(f"--precision={precision}")
    if options.steps is not None:
        found.append(f"--steps={options.steps}")
    for name in ("checkpoint_every", "keep", "seed"):
        if (value := getattr(options, name)) != getattr(default, name):
            found.append(f"--{name.replace('_', '-')}={value}")
    if options.shares:
        found.append(f"--shares={','.join(f'{share:g}' for share in options.shares)}")
    if options.stall_limit_s is not None:
        found.append(f"--stall-limit={options.stall_limit_s:g}")
    found += ["--balance"] * options.balance + ["--in-order"] * (not options.shuffle) + ["--trust"] * trust
    return found


def _exports(exports: Exports | None) -> Sequence[str]:
    if exports is None:
        return ()
    served = (
        ()
        if exports.metrics_port is None
        else (f"--metrics-port={exports.metrics_port}", f"--metrics-host={exports.metrics_host}")
    )
    return (*served, *(["--tensorboard"] * exports.tensorboard))
