"""The job kinds: the stored name, the function that runs, and its parameters.

A name stays when its function moves. Stored parameters are converted to the kind's dataclass here only.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchsplit_core.values import InputFault, InternalFault, SlicesToMake, quoted
from torchsplit_core.values.partition import Objective
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy

TRACE = "trace"
PROFILE = "profile"
PARTITION = "partition"
PLAN = "plan"
EXPLAIN = "explain"
WHAT_IF = "what_if"
SWEEP = "sweep"
DAY = "day"
DAY_CURVE = "day_curve"
HELD_OUT = "held_out"
DAY_REPLAY = "day_replay"
PLACE = "place"
PLACEMENT_FRONTIER = "placement_frontier"
DIVISIONS = "divisions"
STRATEGY = "strategy"
STRATEGY_STUDY = "strategy_study"
QUICK_START = "quick_start"
EVALUATE = "evaluate"
MEASURE = "measure"
RUN_HERE = "run_here"
APPLY = "apply"
TRAIN = "train"
TRAIN_ON = "train_on"


class JobParameters:
    """Base of the parameter dataclasses below. Stored jobs contain their field names."""

    __slots__ = ()
    __pydantic_config__ = {"extra": "forbid"}

    @classmethod
    def upgrade(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert stored fields to the names of this version."""
        return stored


@dataclass(frozen=True, slots=True)
class UploadedFile(JobParameters):
    """A stored upload behind a model, and the SHA-256 of the content that its user trusted (None: none).

    `trust` is the consent of an earlier version, which did not name the content; the user is asked again.
    """

    upload: str
    trusted_sha256: str | None = None
    trust: bool = False


@dataclass(frozen=True, slots=True)
class TraceParameters(JobParameters):
    """Trace `source`: a sample, or a source in `file`."""

    source: str
    file: UploadedFile | None = None

    @classmethod
    def upgrade(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Up to store version 4 the file's fields were stored beside the source."""
        source, files, rest = _split_source(stored)
        rest.pop("trace_again", None)
        return rest | source | ({"file": file} if (file := next(iter(files.values()), None)) else {})


@dataclass(frozen=True, slots=True)
class ProfileParameters(JobParameters):
    """Profile `sources` on `device` (syntax of `choose_devices`); `uploads` are the files of sources that are not
    samples.

    `batch_sizes` None uses those that each model's client offers. Points measured before `again_since` (Unix seconds)
    are measured again; `trace_again` traces again; `at_once` measures the slices of a GPU together.
    """

    sources: tuple[str, ...]
    device: str = "auto"
    batch_sizes: tuple[int, ...] | None = None
    point_budget_s: float = 2.0
    point_limit_s: float | None = None
    cuda_graphs: bool = False
    at_once: bool = False
    again_since: float = 0.0
    trace_again: bool = False
    uploads: Mapping[str, UploadedFile] = dataclasses.field(default_factory=dict)
    make_slices: SlicesToMake | None = None

    @classmethod
    def upgrade(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Up to store version 4 a single source could be stored, with its file's fields beside it."""
        source, files, rest = _split_source(stored)
        alone = {"sources": [source["source"]]} if source else {}
        return alone | ({"uploads": files} if files else {}) | rest


@dataclass(frozen=True, slots=True)
class PartitionParameters(JobParameters):
    """Cut the traced and profiled model `source` into 1 to `stages` parts. `time_factors` give each device's slowdown;
    with them the model is cut into one part per device."""

    source: str
    stages: int = 4
    objective: Objective = "throughput"
    link_gb_per_s: float | None = None
    memory_bytes: int | None = None
    time_factors: tuple[float, ...] | None = None
    time_limit_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RequestParameters(JobParameters):
    """Process the stored request of that name."""

    request: str


@dataclass(frozen=True, slots=True)
class WhatIfParameters(JobParameters):
    """Prove the draft of the stored plan request of that name; `sha256` is the hash of the draft's request."""

    request: str
    sha256: str

    @classmethod
    def upgrade(cls, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """Up to store version 5 these fields held the tried numbers; the draft holds them now."""
        return {key: value for key, value in stored.items() if key not in ("models", "counts")}


@dataclass(frozen=True, slots=True)
class SweepParameters(JobParameters):
    """Vary one parameter of the stored plan request, see `SweepRequest`; None means the default time limit.

    `begun`: of the request of the stored sweep, which may have a current state that the scenario has not.
    """

    request: str
    parameter: str
    target: str
    values: tuple[float, ...]
    time_limit_s: float | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class DayReplayParameters(JobParameters):
    """Simulate the stored day of that name over a day of a trace: `rates` by model, a value every `step_s` seconds from
    `first_s` after midnight (UTC) on, None where it is not known. `target`: utilisation of the threshold rule."""

    request: str
    first_s: int
    step_s: int
    rates: Mapping[str, tuple[float | None, ...]]
    target: float = 0.7


@dataclass(frozen=True, slots=True)
class RequestVersionParameters(JobParameters):
    """Study alternatives to the outcome of the stored request whose file has the SHA-256 `sha256`: the ways to divide
    a placement, the choices of a training strategy."""

    request: str
    sha256: str


@dataclass(frozen=True, slots=True)
class QuickStartParameters(JobParameters):
    """Trace, profile and plan `sources` (None: the usual samples) on (type, count) `gpus` as the scenario `name`."""

    gpus: tuple[tuple[str, int], ...]
    name: str = "Sample models, measured here"
    sources: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class EvaluateParameters(JobParameters):
    """Run the full or the `quick` evaluation; `time_limit_s` limits each plan's search, None: the default."""

    quick: bool = False
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class MeasureParameters(JobParameters):
    """Serve the stored plan of that name and send it `load` times its demands for `duration_s`.

    `stand_in`: run each slice on a core of this host if the host lacks the plan's slices. `in_place`: by model, the
    source that runs instead of its own. `uploads`: the files of all sources that run and are not samples.
    """

    request: str
    load: float = 1.0
    duration_s: float = 20.0
    stand_in: bool = False
    in_place: Mapping[str, str] = dataclasses.field(default_factory=dict)
    uploads: Mapping[str, UploadedFile] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunHereParameters(JobParameters):
    """Measure `sources` (None: the usual samples) on slices of this host's cores, plan them as the scenario
    `request`, serve the plan and load it.

    `run`: a training run of the workspace that is finished first (started if needed); its model replaces `sources`.
    """

    request: str = "This machine, for real"
    sources: tuple[str, ...] | None = None
    duration_s: float = 20.0
    run: str | None = None


@dataclass(frozen=True, slots=True)
class ApplyParameters(JobParameters):
    """Apply the stored plan of that name, whose text has the SHA-256 `plan_sha256`, to the GPUs of this host, which the
    `state` (the text of its file) calls `host`. `on_stop`, `on_start` (empty: the user does it) and `switch_mig_mode`
    are as in `ApplySettings`, the rest is as for `plan_transition`; `has_request`: with the request.
    """

    request: str
    plan_sha256: str
    state: str
    host: str
    prefer_loss: bool = False
    evict_foreign: bool = False
    start_s: float = 20.0
    has_request: bool = True
    on_stop: str = ""
    on_start: str = ""
    switch_mig_mode: bool = False


@dataclass(frozen=True, slots=True)
class TrainParameters(JobParameters):
    """Train `source` (a sample, or a source in `file`) as the run `request`, one process per device of the
    strategy."""

    request: str
    source: str
    strategy: RunStrategy
    options: RunOptions
    file: UploadedFile | None = None


@dataclass(frozen=True, slots=True)
class TrainOnParameters(JobParameters):
    """Resume the run `request` up to the step `steps` (None: the step it was started for).

    `file`: the upload behind its source, if any. `trust`: the user trusts a run folder given by its path; resuming
    executes the source that it names.
    """

    request: str
    steps: int | None = None
    file: UploadedFile | None = None
    trust: bool = False


@dataclass(frozen=True, slots=True)
class JobKind:
    """A job kind.

    target: "module:function" of (workspace, parameters, progress), imported where the job runs.
    resumable: results are stored as they come; a job with the same parameters continues from them.
    quiet: progress is shown where the job was started, not at the head of every page.
    """

    target: str
    parameters: type[JobParameters]
    resumable: bool = False
    quiet: bool = False

    def function(self) -> Callable[..., Any]:
        """Import and return the function of `target`."""
        module, _, name = self.target.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


JOBS: dict[str, JobKind] = {
    TRACE: JobKind("torchsplit_core.jobs.trace:trace_job", TraceParameters),
    PROFILE: JobKind("torchsplit_core.jobs.profile:profile_job", ProfileParameters, resumable=True),
    PARTITION: JobKind("torchsplit_core.jobs.partition:partition_job", PartitionParameters),
    PLAN: JobKind("torchsplit_core.jobs.plan:plan_job", RequestParameters),
    EXPLAIN: JobKind("torchsplit_core.jobs.plan:explain_job", RequestParameters),
    # A proof behind a slider is shown beside the slider: a panel that comes and goes would move the page.
    WHAT_IF: JobKind("torchsplit_core.jobs.plan:trial_job", WhatIfParameters, quiet=True),
    SWEEP: JobKind("torchsplit_core.jobs.sweep:sweep_job", SweepParameters, resumable=True),
    DAY: JobKind("torchsplit_core.jobs.plan:day_job", RequestParameters),
    DAY_CURVE: JobKind("torchsplit_core.jobs.plan:day_curve_job", RequestParameters),
    HELD_OUT: JobKind("torchsplit_core.jobs.plan:held_out_job", RequestParameters),
    DAY_REPLAY: JobKind("torchsplit_core.jobs.plan:day_replay_job", DayReplayParameters),
    PLACE: JobKind("torchsplit_core.jobs.place:place_job", RequestParameters),
    PLACEMENT_FRONTIER: JobKind("torchsplit_core.jobs.place:placement_frontier_job", RequestParameters),
    DIVISIONS: JobKind("torchsplit_core.jobs.place:ways_job", RequestVersionParameters),
    STRATEGY: JobKind("torchsplit_core.jobs.strategy:strategy_job", RequestParameters),
    STRATEGY_STUDY: JobKind("torchsplit_core.jobs.strategy:study_job", RequestVersionParameters),
    QUICK_START: JobKind(
        "torchsplit_core.jobs.quick_start:samples_job", QuickStartParameters, resumable=True
    ),
    EVALUATE: JobKind("torchsplit_core.jobs.evaluate:evaluate_job", EvaluateParameters, resumable=True),
    MEASURE: JobKind("torchsplit_core.jobs.measure:measure_job", MeasureParameters),
    RUN_HERE: JobKind("torchsplit_core.jobs.quick_start:here_job", RunHereParameters, resumable=True),
    APPLY: JobKind("torchsplit_core.jobs.hosts.apply:apply_job", ApplyParameters),
    # A run takes hours: a panel on every page would be in the way.
    TRAIN: JobKind("torchsplit_core.jobs.train:train_job", TrainParameters, quiet=True),
    TRAIN_ON: JobKind("torchsplit_core.jobs.train:train_on_job", TrainOnParameters, quiet=True),
}
"""Every kind by its name. Stores contain the names: never give one another meaning."""


def kind_of(name: str) -> JobKind:
    """The kind of that name. Raises InputFault for an unknown name, such as that of an earlier TorchSplit."""
    if name not in JOBS:
        raise InputFault(
            "job",
            f"is of a kind that this TorchSplit does not know, {quoted(name)}",
            "Start the work anew from its page.",
        )
    return JOBS[name]


def to_stored(name: str, parameters: JobParameters) -> dict[str, Any]:
    """The parameters of a job of that name as JSON values. Raises InternalFault for those of another kind."""
    wanted = kind_of(name).parameters
    if type(parameters) is not wanted:
        raise InternalFault(f"a {name} job takes {wanted.__name__}, not {type(parameters).__name__}")
    return dataclasses.asdict(parameters)  # type: ignore[call-overload,no-any-return]


def from_stored(name: str, stored: Any) -> Any:
    """The parameters as the dataclass of the name's kind. Raises InputFault if they do not fit it."""
    # Imported late: a job that waits for its slot uses little memory.
    from pydantic import TypeAdapter, ValidationError

    wanted = kind_of(name).parameters
    where = f"parameters of the stored {name} job"
    if not isinstance(stored, dict):
        raise InputFault(
            where, f"are {quoted(stored)}, not a JSON object", "Start the work anew from its page."
        )
    try:
        # JSON mode accepts a list for a tuple; all else is strict, for the stored values had these types.
        return TypeAdapter(wanted).validate_json(json.dumps(wanted.upgrade(stored)), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        part = ".".join(map(str, first["loc"])) or "all of them"
        problem = f"is {quoted(first.get('input'))}, but {first['msg'][:1].lower()}{first['msg'][1:]}"
        known = {"missing": "is missing", "unexpected_keyword_argument": "is not a known parameter"}
        raise InputFault(
            f"{where}: {part}", known.get(first["type"], problem), "Start the work anew from its page."
        ) from error


_FILE_FIELDS = tuple(field.name for field in dataclasses.fields(UploadedFile))


def _split_source(stored: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Split into {"source": …} if present, {source: its file} if file fields are present, and the rest."""
    source = {"source": stored["source"]} if "source" in stored else {}
    file = {key: stored[key] for key in _FILE_FIELDS if key in stored}
    rest = {key: value for key, value in stored.items() if key not in (*_FILE_FIELDS, "source")}
    return source, {str(source.get("source")): file} if file else {}, rest
