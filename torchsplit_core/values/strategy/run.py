"""How a run trains: the choices of a strategy, brought to a number of processes, and what it does by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.strategy.communication import CommunicationRequest
from torchsplit_core.values.strategy.held_out import ValidationOptions
from torchsplit_core.values.strategy.updates import UpdateOptions
from torchsplit_core.values.training import ParallelConfig, TrainingJob


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """What a strategy's search estimated: GiB on the fullest device, seconds of a step.

    `low_s`, `high_s`: the ends of their 90 % interval; `parts_s`: seconds by part. An earlier version kept neither.
    """

    memory_gib: float
    seconds_per_step: float
    low_s: float | None = None
    high_s: float | None = None
    parts_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunStrategy:
    """The choices by which a run divides its work, and the samples, format and optimizer of a step.

    `predicted`: what the search said of them, None where none did (a request, another number of processes).
    `layers`: blocks of each stage of the pipeline, `shares`: samples of each data-parallel rank, where the strategy
    says them.
    """

    choices: ParallelConfig
    job: TrainingJob
    predicted: PredictedStep | None = None
    layers: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run does beside its strategy.

    `steps`: the last step, None one pass over the data. `checkpoint_every` in steps, `keep`: complete checkpoints that
    stay. `shares`: parts of a step's samples by data-parallel rank, as numbers that only their ratio counts of;
    empty: equal ones. `seed` orders the samples where they are shuffled and starts the random numbers.
    `stall_limit_s`: seconds without a move after which a rank counts as hung; None: ten times the longest that it
    took before, at least a minute. `balance`: shares follow the measured speed of the ranks. `communication`: how
    gradients are exchanged; `update`: how they become weights; `validation`: when the run is measured on held-out
    samples. `workers`: processes of a rank that fetch samples ahead. `offload_activations`: what the forward pass saves
    is on the host until the backward pass. `trace_steps`: the first and the last step that torch's profiler records.
    Raises InputFault for a count below 1 (of workers 0), a limit that is none, and steps that are not in order.
    """

    steps: int | None = None
    checkpoint_every: int = 50
    keep: int = 2
    shares: tuple[float, ...] = ()
    seed: int = 0
    shuffle: bool = True
    stall_limit_s: float | None = None
    balance: bool = False
    communication: CommunicationRequest = field(default_factory=CommunicationRequest)
    update: UpdateOptions = field(default_factory=UpdateOptions)
    validation: ValidationOptions = field(default_factory=ValidationOptions)
    workers: int = 0
    offload_activations: bool = False
    trace_steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "checkpoint_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = f"--{name.replace('_', '-')}"
                raise InputFault(option, f"is {value}, below the least value 1", "Give 1 or more.")
        if self.trace_steps and not 1 <= self.trace_steps[0] <= self.trace_steps[1]:
            shown = ":".join(map(str, self.trace_steps))
            raise InputFault(
                "--trace-steps", f"is {shown}, not FIRST:LAST from 1 on", "Give for example 10:12."
            )
        if self.workers < 0:
            raise InputFault("--workers", f"is {self.workers}, below the least value 0", "Give 0 or more.")
        limit = self.stall_limit_s
        if limit is not None and not 1 <= limit < float("inf"):
            problem = (
                f"is {limit} s, below the least value 1 s"
                if limit < 1
                else f"is {limit}, not a finite number"
            )
            raise InputFault("--stall-limit", problem, "Give a number of seconds, 1 or more.")


@dataclass(frozen=True, slots=True)
class RunStep:
    """The median step of a finished run on this host.

    `run`: the name of its folder; `finished`: UTC, ISO 8601; `seconds` of a step of `global_batch` samples.
    """

    run: str
    finished: str
    choices: ParallelConfig
    global_batch: int
    seconds: float


def parse_shares(text: str | None) -> tuple[float, ...]:
    """The `shares` of RunOptions from `3,1`; none from nothing. Raises InputFault for anything else."""
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputFault(
            "--shares", f"is {quoted(text)}, not numbers with commas between", "Give for example 3,1."
        ) from None


def parse_trace_steps(text: str | None) -> tuple[int, int] | None:
    """The `trace_steps` of RunOptions from `10:12`; None from nothing. Raises InputFault for anything else."""
    if text is None:
        return None
    first, _, last = text.partition(":")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise InputFault(
            "--trace-steps", f"is {quoted(text)}, not FIRST:LAST", "Give for example 10:12."
        ) from None


@dataclass(frozen=True, slots=True)
class ElasticNodes:
    """Of a run on several machines: how many at least and at most, where they meet (HOST:PORT), this one's name.

    Raises InputFault for numbers, an address or a name that cannot be.
    """

    least: int
    most: int
    rendezvous: str
    name: str

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            problem = (
                f"asks for at least {self.least} nodes, below the least value 1"
                if self.least < 1
                else f"asks for at least {self.least} and at most {self.most} nodes"
            )
            raise InputFault("--nnodes", problem, "Give MIN:MAX, such as 1:2.")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", self.name):
            raise InputFault(
                "--node",
                f"is {quoted(self.name)}, not a node's name",
                "Give each node its own name of at most 100 letters, digits, dots, hyphens and underscores.",
            )
        host, port = self.address
        if not host or not 1 <= port <= 65535:
            raise InputFault(
                "--rendezvous",
                f"is {quoted(self.rendezvous)}, not HOST:PORT",
                "Give an address that all nodes reach, such as node0:29500.",
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; port 0 where it is no number."""
        host, _, port = self.rendezvous.rpartition(":")
        return host.strip("[]"), int(port) if port.isdecimal() and port.isascii() else 0


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Where a run stands when its command ends. `restarts`: of this command; `loss`: of the last step, None before.

    `metrics`: the client's figures on its held-out samples, empty where it has none. `warnings`: what the user should
    know of how it was asked for.
    """

    step: int
    loss: float | None
    restarts: int
    metrics: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exports:
    """Where a run's figures go. `metrics_port`: None no endpoint, 0 a free one, which `training.monitor` publishes."""

    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    tensorboard: bool = False
