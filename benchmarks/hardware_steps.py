"""Steps of `make hardware`. Each takes a `Tell` for its Markdown and returns what did not hold.

Measuring and judging are separate: tables and verdicts are functions of plain figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise

from torchsplit_core import workflow
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.hardware import (
    choose_devices,
    discover_host,
    gpu_state,
    gpu_type,
    open_nvml,
    peak_names,
    peaks,
    plain_profiles,
)
from torchsplit_core.profiling import MeasurementSettings, estimate_rows
from torchsplit_core.values import InputFault, Profile, ProfileRow

Tell = Callable[[str], None]
SLACK = 1.1
"""A limit holds if a measurement reaches at most this many times its share of the whole."""
PROFILED_SHARES = (1 / 8, 1 / 2, 3 / 4)
"""Shares of the SMs to request."""
QUICK = MeasurementSettings(point_budget_s=0.5)
CAPTURED = ("bert", "resnet50")
PREDICTED = ("bert", "resnet50", "clip")
LARGE_AFTER_S = 45.0
"""A larger sample starts only if the step has taken less than this so far."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def listing(tell: Tell) -> tuple[str, ...]:
    """Every GPU that NVML lists, and its state."""
    host = discover_host()
    rows = []
    with open_nvml() as nvml:
        for gpu in host.gpus:
            state = gpu_state(nvml, gpu.uuid)
            mode = {None: "none", True: "on", False: "off"}[gpu.mig_enabled]
            made = ", ".join(item.profile or item.name for item in gpu.instances) or "none"
            memory = "n/a" if gpu.memory_gib is None else f"{gpu.memory_gib:.1f}"
            known = gpu.gpu_type or "not in the catalogue"
            rows.append(
                (
                    gpu.index,
                    gpu.name,
                    known,
                    memory,
                    mode,
                    made,
                    state.words() if state else "does not answer",
                )
            )
    head = ("index", "name", "type", "memory, GiB", "MIG", "instances", "state")
    tell(f"{host.message}\n\n{table(head, rows)}")
    return () if rows else ("NVML lists no GPU",)


def torch_facts(tell: Tell) -> tuple[str, ...]:
    """What torch reports of the first device, against the catalogue."""
    import torch

    from torchsplit_core.profiling.measuring.accelerator import open_device

    (device,) = choose_devices("cuda")
    with open_device(asdict(device)) as opened:
        found = torch.cuda.get_device_properties(0)
        from torch.cuda import green_contexts

        known = peaks(device.gpu_type) if device.gpu_type in peak_names() else None
        rows = [
            ("name", found.name, device.gpu_type),
            ("compute capability", f"{found.major}.{found.minor}", ""),
            ("SMs", opened.facts["sm_count"], known.sm_count if known else "n/a"),
            (
                "memory, GiB",
                f"{found.total_memory / 2**30:.1f}",
                device.memory_gib and f"{device.memory_gib:.1f}",
            ),
            ("green contexts", "yes" if green_contexts.SUPPORTED else "no", ""),
        ]
    tell(table(("", "torch", "catalogue, NVML"), rows))
    if known and known.sm_count != opened.facts["sm_count"]:
        return (f"{opened.facts['sm_count']} SMs here, {known.sm_count} in the catalogue",)
    return ()


def cuda_graphs(tell: Tell, device: str = "cuda", names: Sequence[str] = CAPTURED) -> tuple[str, ...]:
    """Measure two samples, eager and as captured CUDA graphs."""
    rows: list[tuple[object, ...]] = []
    faults: list[str] = []
    for name in names:
        graph = workflow.trace(f"sample:{name}")
        for captured in (False, True):
            settings = MeasurementSettings(point_budget_s=QUICK.point_budget_s, cuda_graphs=captured)
            try:
                found = _measured(name, graph, device, (1, 8), settings)
            except InputFault as fault:
                faults.append(f"{name}, {'CUDA graphs' if captured else 'eager'}: {fault}")
                continue
            rows += [
                (name, row.batch_size, "captured" if captured else "eager", *speed(row)) for row in found
            ]
            tell(table(("model", "batch", "run", *SPEED), rows))
    return tuple(faults)


OPTIONS: Mapping[str, MeasurementSettings] = {
    "as it is, one and two processes": replace(QUICK, processes=(1, 2)),
    "--host-copies": replace(QUICK, host_copies=True),
    "--dtype bfloat16": replace(QUICK, dtype="bfloat16"),
    "--dtype bfloat16 --compile default": replace(QUICK, dtype="bfloat16", compile_mode="default"),
}


def options(
    tell: Tell, device: str = "cuda", name: str = "bert", tried: Mapping[str, MeasurementSettings] = OPTIONS
) -> tuple[str, ...]:
    """Measure one sample in several ways."""
    graph = workflow.trace(f"sample:{name}")
    rows: list[tuple[object, ...]] = []
    faults: list[str] = []
    for words, settings in tried.items():
        try:
            profile = _profiled(name, graph, device, (8,), settings)
        except InputFault as fault:
            faults.append(f"{words}: {fault}")
            continue
        rows += [(words, row.processes, row.batch_size, *speed(row)) for row in measured_rows(profile)]
        tell(table(("how", "processes", "batch", *SPEED), rows))
    return tuple(faults)


SPEED = ("p50, ms", "p95, ms", "requests/s", "memory, GiB", "of which measured peak")


def speed(row: ProfileRow) -> tuple[str, ...]:
    """A measured row's figures."""
    assert row.percentiles_ms is not None and row.memory_parts_gib is not None
    memory = "n/a" if row.memory_gib is None else f"{row.memory_gib:.3f}"
    parts = row.memory_parts_gib
    peak = (
        f"{parts.weights + parts.activations + parts.transient:.3f}" if parts.basis == "measured" else "n/a"
    )
    found = row.percentiles_ms
    return f"{found.p50.value:.3f}", f"{found.p95.value:.3f}", f"{row.throughput_rps:,.0f}", memory, peak


def sm_profiles(tell: Tell) -> tuple[str, ...]:
    """Measure one sample at several numbers of SMs, then on the whole GPU."""
    (whole,) = choose_devices("cuda")
    total = whole.sm_count or 64
    counts = [max(8, round(share * total / 8) * 8) for share in PROFILED_SHARES]
    graph = workflow.trace("sample:bert@large")
    found: list[tuple[str, int | None, ProfileRow]] = []
    faults: list[str] = []
    for text in (*(f"sm:{count}" for count in dict.fromkeys(counts)), "cuda"):
        try:
            profile = _profiled("bert@large", graph, text, (8,), QUICK)
        except InputFault as fault:
            faults.append(f"{text}: {fault}")
            continue
        found += [(text, sms_of(profile), row) for row in measured_rows(profile)]
        tell(sm_table(found))
    return (*faults, *sm_faults(found))


def sm_table(found: Sequence[tuple[str, int | None, ProfileRow]]) -> str:
    """The table: device, SMs given, profile under which the rows are filed, figures."""
    rows = [
        (text, "n/a" if given is None else given, row.profile or "whole GPU", row.basis, *speed(row))
        for text, given, row in found
    ]
    return table(("device", "SMs given", "filed under", "basis", *SPEED), rows)


def sm_faults(found: Sequence[tuple[str, int | None, ProfileRow]]) -> tuple[str, ...]:
    """Where more SMs were slower by more than a tenth, or the driver did not report their number."""
    faults = [f"{text}: the driver did not tell the SMs" for text, given, _ in found if given is None]
    told = sorted(((given, row.throughput_rps) for _, given, row in found if given is not None))
    for (fewer, slow), (more, fast) in pairwise(told):
        if fast * SLACK < slow:
            faults.append(f"{more} SMs serve {fast:.0f} requests/s, {fewer} SMs {slow:.0f}")
    return tuple(faults)


def sms_of(profile: Profile) -> int | None:
    """The number of SMs that the profile's single device had, as read back from the driver."""
    (facts,) = profile.environment["devices"].values()
    count = facts.get("sm_count")
    return None if count is None else int(count)


def predicted(tell: Tell) -> tuple[str, ...]:
    """Measure samples on the whole GPU, against the estimate for the catalogue's largest slice."""
    (device,) = choose_devices("cuda")
    if not _estimable(device.gpu_type):
        return (f"the catalogue has no peaks and slices of {device.gpu_type}: nothing can be predicted",)
    started = time.monotonic()
    rows: list[tuple[object, ...]] = []
    faults: list[str] = []
    for name in (*PREDICTED, *(f"{name}@large" for name in PREDICTED)):
        if name.endswith("@large") and time.monotonic() - started > LARGE_AFTER_S:
            break
        try:
            graph = workflow.trace(f"sample:{name}")
            measured = _measured(name, graph, "cuda", (1, 8, 32), QUICK)
        except InputFault as fault:
            faults.append(f"{name}: {fault}")
            continue
        rows += compared(name, measured, full_slice_rows(graph, device.gpu_type, (1, 8, 32)))
        tell(table(COMPARED, rows))
    return tuple(faults)


COMPARED = (
    "model", "batch", "p50 measured, ms", "predicted, ms", "measured / predicted throughput", "in the 90 % interval",
    "memory measured, GiB", "predicted, GiB", "predicted / measured",
)  # fmt: skip


def compared(
    name: str, measured: Sequence[ProfileRow], estimated: Sequence[ProfileRow]
) -> list[tuple[str, ...]]:
    """One row for each batch size that both have; estimated memory in a measured row is left out."""
    by_batch = {row.batch_size: row for row in estimated}
    rows: list[tuple[str, ...]] = []
    for row in measured:
        other = by_batch.get(row.batch_size)
        if other is None:
            continue
        assert other.low_rps is not None and other.high_rps is not None
        held = other.low_rps <= row.throughput_rps <= other.high_rps
        memory = ("n/a", "n/a", "n/a")
        known = row.memory_parts_gib is not None and row.memory_parts_gib.basis == "measured"
        if known and row.memory_gib and other.memory_gib:
            ratio = other.memory_gib / row.memory_gib
            memory = (f"{row.memory_gib:.3f}", f"{other.memory_gib:.3f}", f"{ratio:.3f}")
        rows.append(
            (
                name,
                str(row.batch_size),
                f"{1000 * row.batch_size / row.throughput_rps:.3f}",
                f"{1000 * other.batch_size / other.throughput_rps:.3f}",
                f"{row.throughput_rps / other.throughput_rps:.2f}",
                "yes" if held else "no",
                *memory,
            )
        )
    return rows


def full_slice_rows(graph: TorchGraph, name: str, batches: Sequence[int]) -> list[ProfileRow]:
    """Estimated rows for the GPU type's plain slice with the most SMs."""
    full = max(plain_profiles(gpu_type(name)), key=lambda item: (item.sm_count or 0, item.memory_slices))
    return [row for row in estimate_rows(graph, (name,), batches) if row.profile == full.name]


def _estimable(name: str) -> bool:
    from torchsplit_core.hardware import catalogue

    return name in catalogue() and name in peak_names()


def _measured(
    name: str, graph: TorchGraph, device: str, batches: Sequence[int], settings: MeasurementSettings
) -> list[ProfileRow]:
    return measured_rows(_profiled(name, graph, device, batches, settings))


def _profiled(
    name: str, graph: TorchGraph, device: str, batches: Sequence[int], settings: MeasurementSettings
) -> Profile:
    """A profile as the command makes it, but without a store: everything is measured again."""
    _, profile = workflow.profile(
        f"sample:{name}",
        graph=graph,
        device=device,
        batch_sizes=batches,
        gpu_types=("A100-80GB",),
        settings=settings,
    )
    return profile


def measured_rows(profile: Profile) -> list[ProfileRow]:
    return [row for row in profile.rows if row.basis != "estimated"]
