"""A step of a training run as a model: `RUN`, `RUN@step-N` or `RUN@best`, where RUN is a run's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsplit_core.values import InputFault, quoted, system_reason

RUN, METRICS, EVENTS, CHECKPOINTS = "run.json", "metrics.jsonl", "events.jsonl", "checkpoints"
VALIDATION, BEST = "validation.json", "best.json"
"""Files and folders of a run."""
MOST_BYTES = 2**20
"""Limit of run.json: a run writes about a thousandth of it."""
_AT_STEP = re.compile(r"(?P<run>.+)@(?:step-(?P<step>\d{1,12})|best)")


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A complete checkpoint of a run. `facts` is the content of run.json, `source` the model that the run trained."""

    run: Path
    step: int
    source: str
    facts: dict[str, Any]

    @property
    def text(self) -> str:
        """The source as a user writes it, with the absolute path and the step."""
        return f"{self.run}@step-{self.step}"

    @property
    def built_by(self) -> str:
        """What builds the model: the source, or of a run that began with another's weights that run's.

        Raises InputFault like `parse_run_source`.
        """
        source = self.source
        while is_run_source(source):
            source = parse_run_source(source).source
        return source

    @property
    def display_name(self) -> str:
        """The name in messages, without the folder's path."""
        return f"{self.run.name}@step-{self.step}"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's folder."""
        return self.run / CHECKPOINTS / step_name(self.step)

    def loss(self) -> float | None:
        """The training loss of the step; None if the log lacks its line."""
        return self._line().get("loss")

    def metrics(self) -> dict[str, float]:
        """What the client measured on its held-out samples at this step; empty if it measured nothing."""
        validation = read_validation(self.run)
        if validation and validation.step == self.step:
            return validation.metrics
        with suppress(ValueError, TypeError, AttributeError):
            return {str(name): float(value) for name, value in self._line().get("validation", {}).items()}
        return {}

    def _line(self) -> dict[str, Any]:
        """The step's line; empty if the log lacks it."""
        lines = json_lines(self.run / METRICS, f'"step": {self.step},')
        return next((line for line in lines if line.get("step") == self.step), {})


@dataclass(frozen=True, slots=True)
class Validation:
    """Means of the client's metrics over `samples` held-out samples."""

    step: int
    samples: int
    metrics: dict[str, float]


def read_validation(run: Path) -> Validation | None:
    """The last measurement of a run on held-out samples; None if none can be read."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        record = json.loads((run / VALIDATION).read_text(encoding="utf-8"))
        metrics = {str(name): float(value) for name, value in record["metrics"].items()}
        return Validation(int(record["step"]), int(record["samples"]), metrics)
    return None


@dataclass(frozen=True, slots=True)
class BestStep:
    """The step of a run whose checkpoint is kept as the best by `metric`, and its value there."""

    step: int
    metric: str
    value: float


def read_best(run: Path) -> BestStep | None:
    """The best step of a run; None if it keeps none."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        record = json.loads((run / CHECKPOINTS / BEST).read_text(encoding="utf-8"))
        return BestStep(int(record["step"]), str(record["metric"]), float(record["value"]))
    return None


def is_run_source(source: str) -> bool:
    """Whether the text names a run: a folder with run.json, or any path with a step."""
    if _AT_STEP.fullmatch(source):
        return True
    try:
        return (Path(source).expanduser() / RUN).is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def parse_run_source(source: str) -> TrainedStep:
    """The step that a text names; a run without a step means its newest complete checkpoint. Executes nothing.

    Raises InputFault for an unknown run, a checkpoint that it lacks, and a damaged run.json.
    """
    match = _AT_STEP.fullmatch(source)
    try:
        run = Path(match["run"] if match else source).expanduser().resolve()
        there = (run / RUN).is_file()
    except (OSError, ValueError, RuntimeError):
        run, there = Path(match["run"] if match else source), False
    if not there:
        problem = (
            "is not a training run: it holds no run.json" if run.is_dir() else "cannot be read: no such run"
        )
        remedy = "Give the folder that torchsplit train -o wrote."
        if source.startswith("run:"):
            remedy = (
                "Only its dashboard's workspace knows run:NAME; give the run's folder, which its page names. With a "
                "plan: deploy, serve and measure take it by --run NAME=FOLDER."
            )
        raise InputFault(source if source.startswith("run:") else str(run), problem, remedy)
    facts = _read_facts(run)
    steps = complete_steps(run / CHECKPOINTS)
    if not steps:
        raise InputFault(
            run.name, "has no complete checkpoint yet", "Wait for its first one, or let the run finish."
        )
    step = steps[-1]
    if match and match["step"]:
        step = int(match["step"])
    elif match:
        best = read_best(run)
        if best is None:
            raise InputFault(
                run.name,
                "keeps no best checkpoint",
                "Name a step, or train with --validate-every and --best.",
            )
        step = best.step
    if step not in steps:
        raise InputFault(
            run.name,
            f"has no checkpoint of step {step}: it holds {_listed(steps)}",
            f"Use {run.name}@step-{steps[-1]}; train with --keep N to hold more.",
        )
    return TrainedStep(run, step, facts["source"], facts)


def with_step(source: str) -> str:
    """The source with the newest step if it names a run alone: what is known of one step is not true of a later one.

    Raises InputFault like `parse_run_source`; any other source is returned unchanged.
    """
    match = _AT_STEP.fullmatch(source)
    if (match and match["step"]) or not is_run_source(source):
        return source
    run = match["run"] if match else source.rstrip("/")
    return f"{run}@step-{parse_run_source(source).step}"


def step_name(step: int) -> str:
    """The name of a complete checkpoint's folder."""
    return f"step-{step:08d}"


def complete_steps(folder: Path) -> list[int]:
    """The steps of the complete checkpoints in a folder, ascending."""
    return sorted(int(path.name[5:]) for path in folder.glob("step-*") if path.name[5:].isdigit())


def _read_facts(run: Path) -> dict[str, Any]:
    path = run / RUN
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict) or not isinstance(facts.get("source"), str):
            raise ValueError
    except (OSError, ValueError, RecursionError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else "it is not what a run writes"
        raise InputFault(f"{run.name}: {RUN}", f"cannot be read: {reason}", "Use another run.") from error
    if ":" not in facts["source"] and not is_run_source(facts["source"]):
        raise InputFault(
            run.name,
            f"was trained by a loop of its own from {quoted(facts['source'])}, which no source builds",
            "Train it by torchsplit train, whose runs name their source.",
        )
    return facts


def json_lines(path: Path, text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of the lines that contain the text; skips the others, of which a run may have millions."""
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            with suppress(ValueError, RecursionError):
                if text in line and isinstance(record := json.loads(line), dict):
                    yield record


def _listed(steps: list[int]) -> str:
    *first, last = map(str, steps)
    return f"steps {', '.join(first)} and {last}" if first else f"step {last}"
