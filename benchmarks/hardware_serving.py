"""Steps of `make hardware` that run plans: parts of a cut model in separate processes, and served plans under load.

Slices are SMs of a whole GPU (`--stand-in sm`), so MIG settings stay as they are. Without a GPU the same calls run
on cores (`cores_ground`); the tests do so.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.hardware_steps import QUICK, Tell, table
from torchsplit_core import workflow
from torchsplit_core.hardware import catalogue, choose_devices, gpu_type, plain_profiles
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.request.edit import with_stages
from torchsplit_core.serving.load_test.session import ServerHandle, serving_session
from torchsplit_core.serving.protocol.client import RawTensor, decode_outputs
from torchsplit_core.serving.settings import LoadSettings, ServeSettings, StandIn
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    PartitionOutcome,
    PlanRequest,
    Profile,
    ignore_progress,
)
from torchsplit_core.values.serving.measurement import MeasuredModel, Measurement

SOURCES = ("sample:bert@large", "sample:resnet50@large")
"""Models whose batches take tens of ms on a few SMs: the front end, a Python process, stays far from its limit."""
BATCHES = (1, 2, 4)
LOAD = 0.7
SECONDS = 5.0
MOST_RPS = 200.0
"""The front end shares its core with the load generator; at higher rates it would be the bottleneck."""
ALONE = 20
"""Number of requests sent one at a time."""
NEAR = 0.01
"""Tolerance as a share of the largest number: TF32 and another order of summation differ by less."""
RATE_BAND = 0.10
BEGIN_S = 50.0
"""A case starts only if the step has taken less than this so far."""


@dataclass(frozen=True)
class Ground:
    """A fleet of one device: the profile it fits twice, the one it fits once, and what stands in for its slices."""

    fleet: FleetEntry
    half: str
    whole: str
    prefix: str
    stand_in: StandIn


def sm_ground() -> Ground | None:
    """The first whole GPU of this host, sliced by SMs; None if its type has no MIG profiles with known SMs."""
    (device,) = choose_devices("cuda")
    if device.gpu_type not in catalogue():
        return None
    known = [one for one in plain_profiles(gpu_type(device.gpu_type)) if one.sm_count]
    twice = [one for one in known if one.max_instances >= 2]
    if not twice:
        return None
    half, whole = (
        max(found, key=lambda one: (one.sm_count or 0, one.memory_slices)) for found in (twice, known)
    )
    return Ground(FleetEntry(device.gpu_type), half.name, whole.name, "sm:", "sm")


def cores_ground() -> Ground:
    """Two cores of this host."""
    return Ground(FleetEntry("CPU-2c"), "1c", "2c", "cpu:", "none")


@dataclass(frozen=True)
class Case:
    """A plan to run: how many models, whole or cut, on which profile."""

    name: str
    models: int
    cut: bool = False
    shared: bool = False


CUT = Case("cut in two, a slice each", 1, cut=True)
WHOLE = Case("one model, two slices", 1)
CASES = (WHOLE, Case("two models, a slice each", 2), Case("two models share a slice", 2, shared=True), CUT)


@dataclass(frozen=True)
class Measured:
    """A step's models: their profiles on both slices, and a cut of the first model."""

    profiles: tuple[Profile, ...]
    cut: PartitionOutcome


def request_of(ground: Ground, case: Case, found: Measured) -> PlanRequest:
    """A request whose only plan is the case."""
    profile = ground.whole if case.shared else ground.half
    request = build_request(
        found.profiles[: case.models],
        (ground.fleet,),
        candidates=[found.cut] if case.cut else [],
        sharing="fractional" if case.shared else "exclusive",
    )
    models = tuple(
        replace(model, variants=tuple(one for one in model.variants if (len(one.stages) > 1) == case.cut)[:1])
        for model in request.models
    )
    return with_stages(
        replace(request, models=models),
        lambda model, variant, stage: replace(
            stage, points=tuple(point for point in stage.points if point.profile == profile)
        ),
    )


def measured(ground: Ground, sources: Sequence[str], batches: Sequence[int]) -> Measured:
    """Profile each model on both slices. Raises InputFault."""
    slices = ",".join(f"{ground.prefix}{name}" for name in dict.fromkeys((ground.half, ground.whole)))
    profiles, graphs = [], []
    for source in sources:
        graph, profile = workflow.profile(
            source, device=slices, batch_sizes=batches, gpu_types=("A100-80GB",), settings=QUICK
        )
        graphs.append(graph)
        profiles.append(profile)
    cut = workflow.partition(sources[0], profiles[0], graph=graphs[0], stages=2, time_limit_s=10.0)
    return Measured(tuple(profiles), cut)


def parts(
    tell: Tell, ground_of: Callable[[], Ground | None] = sm_ground, source: str = SOURCES[0]
) -> tuple[str, ...]:
    """Check that a cut model in two processes on two slices gives the answer of the whole model on them."""
    ground = ground_of()
    if ground is None:
        tell(NO_SLICES)
        return ()
    found = measured(ground, (source,), BATCHES[:1])
    rows: list[tuple[object, ...]] = []
    answers: dict[str, tuple[RawTensor, ...]] = {}
    for case in (WHOLE, CUT):
        request = request_of(ground, case, found)
        plan = workflow.plan(request)
        with serving_session(
            plan, request, ServeSettings(port=0, stand_in=ground.stand_in), ignore_progress
        ) as server:
            times, answers[case.name] = ask_alone(server, request.models[0].name)
        processes = sum(len(item.tenants) for gpu in plan.gpus for item in gpu.slices)
        apart = furthest(answers[WHOLE.name], answers[case.name])
        rows.append((case.name, processes, f"{statistics.median(times):.3f}", f"{apart:.2g}"))
        tell(table(PARTS, rows))
    return (
        () if apart <= NEAR else (f"the parts' answer is {apart:.2g} of its largest number off the model's",)
    )


PARTS = (
    "how",
    "processes",
    "response one at a time, ms",
    "answer from the whole model's, of its largest number",
)
NO_SLICES = "n/a: this GPU's type has no MIG profiles with known SMs.\n"


def ask_alone(server: ServerHandle, model: str) -> tuple[list[float], tuple[RawTensor, ...]]:
    """Send the example request ALONE times, one at a time: ms of each, and the last answer. Raises RuntimeError."""
    request = server.example_request(model)
    times = []
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        for _ in range(ALONE):
            started = time.perf_counter()
            connection.sendall(request)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            body = answer.read()
            times.append(1e3 * (time.perf_counter() - started))
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {body[:200]!r}")
    return times, decode_outputs(body, answer.headers["inference-header-content-length"])


def furthest(wanted: Sequence[RawTensor], found: Sequence[RawTensor]) -> float:
    """Largest difference of two answers relative to the first's largest number; infinite if shapes differ."""
    if [one.shape for one in wanted] != [one.shape for one in found]:
        return float("inf")
    worst = 0.0
    for one, other in zip(wanted, found, strict=True):
        left, right = (np.frombuffer(tensor.data, KINDS[tensor.datatype]) for tensor in (one, other))
        if not np.isfinite(right).all():
            return float("inf")
        worst = max(worst, float(np.abs(left - right).max() / max(np.abs(left).max(), 1e-30)))
    return worst


KINDS = {"FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8"}


def plans(
    tell: Tell,
    ground_of: Callable[[], Ground | None] = sm_ground,
    sources: Sequence[str] = SOURCES,
    seconds: float = SECONDS,
) -> tuple[str, ...]:
    """Serve and load the cases' plans; show predicted beside measured figures."""
    started = time.monotonic()
    ground = ground_of()
    if ground is None:
        tell(NO_SLICES)
        return ()
    rows: list[tuple[str, ...]] = []
    said: list[str] = []
    faults: list[str] = []
    found = measured(ground, sources, BATCHES)
    for case in CASES:
        if time.monotonic() - started > BEGIN_S:
            rows.append((case.name, *("n/a",) * (len(SERVED) - 2), "no time was left"))
        else:
            try:
                run = run_case(ground, case, found, seconds)
            except InputFault as fault:
                faults.append(f"{case.name}: {fault}")
                continue
            rows += served_rows(case, run)
            faults += served_faults(case, run)
            said += [f"- {case.name}: {one.message}" for one in run.disagreements]
        tell("\n".join([table(SERVED, rows), *said]))
    return tuple(faults)


SERVED = (
    "plan", "model", "sent, requests/s", "predicted", "measured", "p95 simulated, ms", "replayed", "measured", "errors",
)  # fmt: skip


def run_case(ground: Ground, case: Case, found: Measured, seconds: float) -> Measurement:
    """Plan, serve and load the case. Raises InputFault."""
    request = request_of(ground, case, found)
    plan = workflow.plan(request)
    demands = {model.name: model.demand_rps for model in request.models}
    # One load factor for all models, so that none exceeds its load and their ratios stay those of the plan.
    load = min(min(LOAD * one.throughput_rps, MOST_RPS) / demands[one.name] for one in plan.models)
    settings = ServeSettings(port=0, stand_in=ground.stand_in)
    return workflow.measure(plan, request, settings, LoadSettings(seconds, load))


def served_rows(case: Case, run: Measurement) -> Iterator[tuple[str, ...]]:
    """One row a model."""
    for one in run.models:
        times = (one.simulated_ms.p95, one.replayed_ms.p95, one.measured_ms.p95)
        yield (
            case.name,
            one.name,
            *(f"{rate:.1f}" for rate in (one.offered_rps, one.predicted_rps, one.measured_rps)),
            *("n/a" if ms is None else f"{ms:.2f}" for ms in times),
            str(one.errors),
        )


def served_faults(case: Case, run: Measurement) -> Iterator[str]:
    """Requests without a result, and predicted rates that were not reached."""
    for one in run.models:
        if one.errors:
            yield f"{case.name}: {one.errors} requests to {one.name} got no result"
        if fell_short(one):
            yield f"{case.name}: {one.name} had {one.measured_rps:.1f} of {one.predicted_rps:.1f} requests/s"


def fell_short(one: MeasuredModel) -> bool:
    """Whether the measured rate is below the predicted one by more than RATE_BAND."""
    return one.measured_rps < (1 - RATE_BAND) * one.predicted_rps
