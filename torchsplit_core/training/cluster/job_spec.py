"""A run on equal nodes, for a cluster that starts it: its name, and the command that each node runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsplit_core import files
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.communication import format_communication
from torchsplit_core.values.strategy.run import Exports, RunOptions
from torchsplit_core.values.training import Precision

if TYPE_CHECKING:
    from torchsplit_core.model_source import ModelSource
    from torchsplit_core.training.cluster.resources import Fleet

FORMATS = ("slurm", "jobset", "job")
"""A Slurm script; for Kubernetes a JobSet, or a Job with a Service if the JobSet controller is not installed."""


@dataclass(frozen=True, slots=True)
class FleetJob:
    """A run whose nodes all start the same command.

    `name`: a DNS label that begins with a letter (RFC 1035). `options`: of `train`, without those that the cluster
    sets: strategy, folder, nodes and rendezvous. `strategy`: the text of its file.
    """

    name: str
    source: ModelSource
    options: tuple[str, ...]
    strategy: str
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class PodSpec:
    """Names in a Kubernetes cluster: the image that has TorchSplit, the volume claim that all pods share.

    Raises InputFault for an invalid name.
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
    """A run of the source on a fleet (see `fleet_of`) by the strategy file's value `given`, named after its folder.

    Raises InputFault for a source that cannot be trained.
    """
    # Imported here, as the files are: a caller that only needs the names of the formats waits for neither.
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
    """The name of a job, from its folder's: at most 63 characters with what Kubernetes adds for pods."""
    # Imported here: its package loads the planner, for which a command that writes no files should not wait.
    from torchsplit_core.deployment.safe_text import dns_labels

    label = dns_labels({text: (text,)})[text]
    return label if label[0].isalpha() else dns_labels({text: ("run", text)})[text]


def _options(options: RunOptions, candidate: int, precision: Precision | None, trust: bool) -> Sequence[str]:
    """The options that differ from their defaults; each is one word with its value."""
    default = RunOptions()
    arguments: list[str] = []
    if candidate != 1:
        arguments.append(f"--candidate={candidate}")
    if precision:
        arguments.append(f"--precision={precision}")
    if options.steps is not None:
        arguments.append(f"--steps={options.steps}")
    for name in ("checkpoint_every", "keep", "seed", "workers"):
        if (value := getattr(options, name)) != getattr(default, name):
            arguments.append(f"--{name.replace('_', '-')}={value}")
    if options.shares:
        arguments.append(f"--shares={','.join(f'{share:g}' for share in options.shares)}")
    if options.communication != default.communication:
        arguments.append(f"--communication={format_communication(options.communication)}")
    update, default_update = options.update, default.update
    for field in dataclasses.fields(update):
        if (value := getattr(update, field.name)) != getattr(default_update, field.name):
            arguments.append(f"--{field.name.replace('_', '-')}={value}")
    if options.validation.every is not None:
        arguments.append(f"--validate-every={options.validation.every}")
    if options.validation.best:
        arguments.append(f"--best={options.validation.best}")
    if options.stall_limit_s is not None:
        arguments.append(f"--stall-limit={options.stall_limit_s:g}")
    if options.trace_steps:
        arguments.append("--trace-steps={}:{}".format(*options.trace_steps))
    arguments += ["--offload-activations"] * options.offload_activations
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
