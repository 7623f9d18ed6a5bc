"""Short runs of a client that does what a test says."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.paths import ROOT
from torchsplit_core.training import RunFolder, launch, train
from torchsplit_core.values.strategy.run import ElasticNodes, RunOptions, RunStrategy, RunSummary
from torchsplit_core.values.training import ParallelConfig, Precision, TrainingJob

PRELOADED = (*launch.PRELOADED, *launch.PRELOADED_PIPELINE)
"""The runs of all tests are forked from one server, whose first run is seldom a pipeline."""


def client_file(folder: Path, name: str = "client", **plan: Any) -> str:
    """A source whose client follows the plan."""
    place = folder / name
    place.mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "support" / "training" / "client.py", place / f"{name}.py")
    (place / "plan.json").write_text(json.dumps(plan))
    return f"{place / name}.py:client"


def strategy(
    global_batch: int = 8, precision: Precision = "fp32", optimizer: Any = "sgd", **choices: Any
) -> RunStrategy:
    """Choices by name, for a job."""
    return RunStrategy(ParallelConfig(**choices), TrainingJob(global_batch, precision, optimizer))


def run(
    source: str,
    folder: Path,
    plan: RunStrategy,
    processes: int,
    *,
    resume: bool = False,
    nodes: ElasticNodes | None = None,
    **options: Any,
) -> RunSummary:
    """Train in the order of the samples, here, with processes beside."""
    given = {"steps": 6, "checkpoint_every": 2, "shuffle": False, **options}
    what = RunOptions(**given)
    with (
        mock.patch.object(launch, "PRELOADED", PRELOADED),
        mock.patch("torch.distributed.elastic.rendezvous.dynamic_rendezvous.get_method_name", _caller),
    ):
        return train(
            source, plan, folder, options=what, processes=processes, nodes=nodes, resume=resume, trust=True
        )


def _caller(depth: int = 2) -> str:
    """The name that torch puts into an event, without the source of every frame: with all the modules that tests
    have loaded that takes a second of the processor in each attempt."""
    return sys._getframe(depth).f_code.co_name


def losses_divided(
    source: str, folder: Path, processes: int, choices: dict[str, Any], **options: Any
) -> list[float]:
    """The losses of eight steps of eight samples, trained by these choices in so many processes."""
    plan = strategy(optimizer="adamw", **{"micro_batch": 8, **choices})
    run(source, folder, plan, processes, steps=8, checkpoint_every=100, **options)
    return losses(folder)


def losses_alone(folder: Path, *, samples: int, steps: int) -> list[float]:
    """Of one process that takes each step in one pass, of a model of four blocks: those of every division of it."""
    source = client_file(folder, samples=samples, blocks=4)
    plan = strategy(optimizer="adamw", micro_batch=8)
    run(source, folder / "run", plan, 1, steps=steps, checkpoint_every=100)
    return losses(folder / "run")


def beside(target: Callable[..., object], *given: Any, **named: Any) -> ForkServerProcess:
    """A process that does that, begun with torch loaded, as ranks are."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    process = context.Process(target=target, args=given, kwargs=named)
    process.start()
    return process


def losses(folder: Path) -> list[float]:
    """Of each step; the steps stand once each, in order."""
    lines = RunFolder(folder).steps()
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The run's events of that kind; a line that is being written is none yet."""
    whole = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    lines = [json.loads(line) for line in whole if line.endswith("\n")]
    assert all(set(line) == {"time", "kind", "rank", "node", "words"} for line in lines)
    return [line for line in lines if line["kind"] == kind]
