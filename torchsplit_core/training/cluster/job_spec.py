"""A run on equal nodes, for a cluster that starts it: its name, and the command that each node runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import files
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.run import Exports, RunOptions
from torchsplit_core.values.training import Precision

if TYPE_CHECKING:
    from torchsplit_core.model_source import ModelSource
    from torchsplit_core.training.cluster.resources import Fleet

FORMATS = ("slurm", "jobset", "job")
"""A Slurm script; for Kubernetes a JobSet, or where its controller is not installed a Job with a Service."""


@dataclass(frozen=True, slots=True)
class FleetJob:
    """A run on nodes that start the same command.

    `name`: a DNS label that begins with a letter (RFC 1035). `options`: of `train`, without what a cluster says:
    strategy, folder, nodes and where they meet. `strategy`: the text of its file.
    """

    name: str
    source: ModelSource
    options: tuple[str, ...]
    strategy: str
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class PodSpec:
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
                f"is {quoted(self.image)}, not the name of a container image",
                "Give a name like registry/torchsplit:1.",
            )
        if len(self.claim) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", self.claim):
            raise InputFault(
                "--claim",
                f"is {quoted(self.claim)}, not the name of a PersistentVolumeClaim",
                "Use lower-case letters, digits, hyphens and dots, for example torchsplit-runs.",
            )


def fleet_job(
    source: str,
    given: Any,
    fleet: Fleet,
    folder: str | Path,
    *,
    options: RunOptions,
    candidate: int = 1,
    precision: Precision | None = None,
    trust: bool = False,
    exports: Exports | None = None,
) -> FleetJob:
    """A run of that source by a strategy's value on a fleet (see `fleet_of`), called after its folder.

    Raises InputFault for a source that cannot be trained.
    """
    # Here, as the files are: who asks for the names of the formats alone waits for neither.
    from torchsplit_core.model_source import parse_source

    parsed = parse_source(source, trust=trust)
    if parsed.kind == "pt2":
        raise InputFault(
            "model source",
            f"{quoted(source)} is a .pt2, which has no data, loss or optimizer to train with",
            "Give a sample or FILE.py:NAME.",
        )
    return FleetJob(
        name=job_name(Path(folder).absolute().name),
        source=parsed,
        options=(*_options(options, candidate, precision, trust), *_exports(exports)),
        strategy=files.write_text(given),
        fleet=fleet,
    )


def job_name(text: str) -> str:
    """A name for a job, of a folder's: with what Kubernetes adds for pods it has at most 63 characters."""
    # With its package comes the planner, for which a command that writes no files should not wait.
    from torchsplit_core.deployment.safe_text import dns_labels

    label = dns_labels({text: (text,)})[text]
    return label if label[0].isalpha() else dns_labels({text: ("run", text)})[text]


def _options(options: RunOptions, candidate: int, precision: Precision | None, trust: bool) -> Sequence[str]:
    """What is not as it is by default; each with its value in one word."""
    default = RunOptions()
    arguments: list[str] = []
    if candidate != 1:
        arguments.append(f"--candidate={candidate}")
    if precision:
        arguments.append(f"--precision={precision}")
    if options.steps is not None:
        arguments.append(f"--steps={options.steps}")
    for name in ("checkpoint_every", "keep", "seed"):
        if (value := getattr(options, name)) != getattr(default, name):
            arguments.append(f"--{name.replace('_', '-')}={value}")
    if options.shares:
        arguments.append(f"--shares={','.join(f'{share:g}' for share in options.shares)}")
    if options.stall_limit_s is not None:
        arguments.append(f"--stall-limit={options.stall_limit_s:g}")
    arguments += (
        ["--balance"] * options.balance + ["--in-order"] * (not options.shuffle) + ["--trust"] * trust
    )
    return arguments


def _exports(exports: Exports | None) -> Sequence[str]:
    if exports is None:
        return ()
    served = (
        ()
        if exports.metrics_port is None
        else (f"--metrics-port={exports.metrics_port}", f"--metrics-host={exports.metrics_host}")
    )
    return (*served, *(["--tensorboard"] * exports.tensorboard))
