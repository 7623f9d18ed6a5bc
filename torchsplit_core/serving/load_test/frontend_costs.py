"""Measures what the frontend costs on this host: ms of a core for a request, a batch, a megabyte.

A frontend serves two models that return their input; the load generator keeps a number of requests in flight. The
frontend's processor time (user and system) over a block of requests is its cost, whatever shares its core; that is
steadier than a search for its highest rate. Blocks differ in batches and bytes, so least squares separate the three
costs. They hold for a busy frontend; one that idles between requests takes up to twice as long for each.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from torchsplit_core.files.host_measurements import save_measurement, saved_measurement
from torchsplit_core.hardware import discover_host
from torchsplit_core.serving.load_test.session import ServerHandle, send_load, serving_session
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    PlanModel,
    PlanRequest,
    Point,
    Progress,
    Stage,
    Variant,
    ignore_progress,
)
from torchsplit_core.values.plan.front import FrontCosts
from torchsplit_core.values.units import MB

METHOD_VERSION = 1
"""Raised when a change of the method makes older figures incomparable."""
COSTS_FILE = "front-costs.json"
"""File in the store, with an entry for each host and version."""
MODELS = Path(__file__).with_name("identity_models.py")
BATCH, BYTES = 16, {"small": 2 * 64, "large": 2 * 262_144}
"""Largest batch in rows; bytes of a request's input and output."""
BLOCK_S, BLOCKS = 0.4, 3
"""Length and number of blocks of each kind; processor time has a resolution of 10 ms."""
FEW, MANY = 1, 64
"""Requests in flight: for batches of one, and for full ones."""


@dataclass(frozen=True, slots=True)
class CostSample:
    """A block of requests: its size, processor time (ms) of frontend and generator, hand-over time (ms) of a batch."""

    requests: int
    batches: int
    megabytes: float
    ms: float
    hand_over_ms: float
    generator_ms: float = 0.0


def saved_costs(root: Path, since: float = 0.0) -> FrontCosts | None:
    """The costs measured on this host with this version since then (Unix seconds), or None.

    `root` is the store's folder.
    """
    try:
        entry = saved_measurement(root / COSTS_FILE, _host_key())
        return FrontCosts(**entry["costs"]) if entry["kept"] >= since else None
    except (KeyError, TypeError):
        return None


def front_costs(root: Path, progress: Progress = ignore_progress, since: float = 0.0) -> FrontCosts:
    """The saved costs, or else those measured now (about 12 s) and saved. Raises InputFault."""
    costs = saved_costs(root, since)
    if costs is None:
        costs = measure_costs(progress)
        entry = {"kept": time.time(), "costs": asdict(costs)}
        save_measurement(root / COSTS_FILE, _host_key(), entry)
    return costs


@cache
def _host_key() -> str:
    """A hash of what the costs depend on: processor, cores, Python, and the code of serving."""
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        code.update(path.read_bytes())
    facts = (discover_host().cpu_name, _cores(), platform.python_version(), code.hexdigest(), METHOD_VERSION)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def measure_costs(progress: Progress = ignore_progress) -> FrontCosts:
    """Measure the costs, with the frontend on cores apart from its worker's, if there are any. Raises InputFault.

    The load generator runs on the worker's core. An exception from `progress` ends everything.
    """
    from torchsplit_core.planning import plan

    request = _request()
    settings = ServeSettings(port=0, trust=True)
    progress(0.0, "measuring what the front carries on this host")
    with serving_session(plan(request), request, settings, ignore_progress) as server:
        progress(0.5, "one request at a time")
        few = tuple(_measure_samples(server, "small", FEW))
        progress(0.65, f"{MANY} requests at a time")
        many = tuple(_measure_samples(server, "small", MANY))
        progress(0.8, "large requests")
        large = tuple(_measure_samples(server, "large", MANY))
    return fit_costs(few, many, large)


def _request() -> PlanRequest:
    """A request with both models on one core; only one of them gets load at a time."""
    models = tuple(
        PlanModel(
            name,
            (Variant("whole", (Stage("whole", (Point("CPU", "1c", BATCH, 1e4, 1.0, memory_gib=0.1),)),)),),
            source=f"{MODELS}:{name.capitalize()}",
        )
        for name in BYTES
    )
    return PlanRequest((FleetEntry("CPU-1c"),), models, sharing="fractional")


def _measure_samples(server: ServerHandle, model: str, connections: int) -> Iterator[CostSample]:
    """Measure blocks; the first warms up and determines how many requests fill a block."""
    request, cores = server.example_request(model), sorted(os.sched_getaffinity(0))[:1]
    count = 100
    for number in range(BLOCKS + 1):
        server.fetch_json("DELETE", "/torchsplit/tallies")
        before = processor_ms(server.pid)
        result = send_load(server, {model: request}, {model: [0.0] * count}, cores, connections=connections)
        spent = processor_ms(server.pid) - before
        answers = result.answers[model]
        if any(status != 200 for _, _, status in answers):
            problem = "refused requests while its costs were measured"
            raise InputFault("the front", problem, "Measure again when this machine is less busy.")
        tallies = server.fetch_json("GET", "/torchsplit/tallies").values()
        if number:
            yield CostSample(
                count,
                sum(tally["batches"] for tally in tallies),
                count * BYTES[model] / MB,
                spent,
                _hand_over(tallies),
                1e3 * result.processor_s,
            )
        length = max(due + response for due, response, _ in answers)
        count = max(20, min(5_000, int(count * BLOCK_S / length)))


def _hand_over(tallies: Sequence[dict[str, dict[str, list[float]]]]) -> float:
    """Time (ms) that a batch keeps its worker besides computing, from 10th percentiles, which other work on the machine
    hardly lengthens."""
    return max(0.0, _undisturbed(tallies, "whole_ms") - _undisturbed(tallies, "compute_ms"))


def _undisturbed(tallies: Sequence[dict[str, dict[str, list[float]]]], kind: str) -> float:
    return float(
        np.percentile([ms for tally in tallies for times in tally[kind].values() for ms in times], 10)
    )


def processor_ms(pid: int) -> float:
    """User and system time (ms) of a process and its threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1e3 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fit_costs(
    few: Sequence[CostSample], many: Sequence[CostSample], large: Sequence[CostSample]
) -> FrontCosts:
    """Fit non-negative costs to all blocks, least squares of the relative errors.

    Raises InputFault for a block that took less than a tick of the processor's clock, which relates to nothing.
    """
    from scipy.optimize import nnls

    samples = (*few, *many, *large)
    if not all(sample.ms > 0 for sample in samples):
        problem = "was measured on so busy a machine that a block took no tick of its clock"
        raise InputFault("the front", problem, "Measure again when this machine is less busy.")
    rows = [(sample.requests, sample.batches, sample.megabytes) for sample in samples]
    spent = np.array([sample.ms for sample in samples])
    (request, batch, megabyte), _ = nnls(np.array(rows) / spent[:, None], np.ones(len(samples)))
    request_ms = [
        (sample.ms - batch * sample.batches - megabyte * sample.megabytes) / sample.requests
        for sample in many
    ]
    return FrontCosts(
        float(request),
        float(batch),
        float(megabyte),
        statistics.median(sample.hand_over_ms for sample in few),
        max(0.0, min(*request_ms, float(request))),
        max(*request_ms, float(request)),
        _cores(),
        f"{discover_host().cpu_name}, {_cores()} cores",
        statistics.median(sample.generator_ms / sample.requests for sample in many),
    )
