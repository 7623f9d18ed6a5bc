"""Chooses the runs of a load generator that give a batch's service time, and turns them into profile rows.

A generator keeps a number of requests in flight (the concurrency) and reports requests/s and the latency it observed.
That latency is a batch's service time only if no request waits for an instance and no instance is idle, that is, if
the concurrency equals the number of instances. That run is chosen for each (model, batch, instances); else the one
with the next higher concurrency, else the one with the highest lower concurrency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.tables.cell_parsing import CellFault
from torchsplit_core.tables.row_parsing import latency_of
from torchsplit_core.tables.slice_parsing import check_gpu_type, choose_slice
from torchsplit_core.values import InputFault, ProfileRow


@dataclass(frozen=True, slots=True)
class TritonRun:
    """One measurement of a model at one concurrency; latency and memory are None if the file lacks them."""

    model: str
    batch_size: int
    instances: int
    concurrency: int
    throughput_rps: float
    latency_ms: float | None
    memory_gib: float | None


def resolve_slice(gpu_type: str, slice_name: str | None) -> str | None:
    """The profile that `slice_name` means; None for the whole GPU. Raises InputFault for an unknown GPU or slice."""
    check_gpu_type(gpu_type)
    try:
        chosen = choose_slice(gpu_type, slice_name or "", "")
    except CellFault as fault:
        raise InputFault("slice", fault.problem, fault.remedy) from fault
    return chosen.name if chosen else None


def choose_runs(runs: Sequence[TritonRun]) -> tuple[TritonRun, ...]:
    """For each (model, batch, instances) the run closest to the service time; of equals the fastest."""
    groups: dict[tuple[str, int, int], list[TritonRun]] = {}
    for run in runs:
        groups.setdefault((run.model, run.batch_size, run.instances), []).append(run)

    def rank(run: TritonRun) -> tuple[bool, int, float]:
        excess = run.concurrency - run.instances
        return excess < 0, abs(excess), -run.throughput_rps

    return tuple(min(group, key=rank) for group in groups.values())


def profile_row(run: TritonRun, gpu_type: str, profile: str | None) -> ProfileRow:
    """The run as a profile row; each instance counts as a process of the slice."""
    latency = run.latency_ms
    if latency is None:
        latency = latency_of(run.batch_size, run.instances, run.throughput_rps)
    return ProfileRow(
        stage="whole",
        gpu_type=gpu_type,
        profile=profile,
        batch_size=run.batch_size,
        processes=run.instances,
        throughput_rps=run.throughput_rps,
        latency_ms=latency,
        low_rps=None,
        high_rps=None,
        memory_gib=run.memory_gib,
        basis="measured",
    )


def describe_runs(
    runs: Sequence[TritonRun], chosen: Sequence[TritonRun], latency_column: str | None
) -> tuple[str, ...]:
    """Notes on how the figures were obtained."""
    notes = [
        "the client measured: latencies include the way to the server, and throughputs the time an instance "
        "waited for its next request"
    ]
    if latency_column is None:
        notes.append(
            "the file has no latency: it is taken as 1000 · batch · instances / throughput, a mean and no percentile"
        )
    elif "p95" not in latency_column.lower():
        notes.append(f"the file has no p95: {latency_column!r} stands for it")
    queued = sum(run.concurrency > run.instances for run in chosen)
    if queued:
        notes.append(
            f"{queued} of {len(chosen)} points had no run with as many requests under way as instances: "
            "their latency includes waiting in Triton's queue"
        )
    idle = sum(run.concurrency < run.instances for run in chosen)
    if idle:
        notes.append(
            f"{idle} of {len(chosen)} points had fewer requests under way than instances: their throughput "
            "is of those that were busy"
        )
    if len(runs) > len(chosen):
        notes.append(
            f"{len(runs) - len(chosen)} of {len(runs)} runs were left out: other concurrencies or slower "
            "configurations of the same model, batch size and instances"
        )
    return tuple(notes)
