"""How a row's requests were served: by the row's configuration, otherwise by its submitter's files for such systems.

Sources: the configurations and servers in mlcommons/inference_results_v1.0 to v3.0, closed/NVIDIA/configs (Dell's and
Azure's for their systems) and closed/NVIDIA/code/harness; from v2.0 on, nothing else was read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.mlperf_rows import Row

FULL_US = 1e6
"""Triton's queue delay where a configuration gives none: its batches wait until they are full."""


@dataclass(frozen=True)
class Way:
    """How a benchmark is served.

    A request's work is log-normal: `spread` is the standard deviation of its logarithm (0: all alike), cut at
    `longest` medians. `soft_drop`: quantile of the running sums of work in batches above which a batch defers
    requests to the end of the run. `gathers`: batches wait to fill. `window`: from when the wait counts, as in
    `Batcher`. `front`: Triton's front for many slices stands before them. `one_queue`: all slices share a queue.
    """

    max_batch: int
    wait_us: float
    streams: int = 1
    ahead: int = 0
    spread: float = 0.0
    longest: float = 1.0
    soft_drop: float = 1.0
    gathers: bool = True
    window: Literal["free", "oldest"] = "free"
    front: bool = False
    one_queue: bool = False


WAYS = {
    "resnet50": Way(8, 1000),
    "ssd-resnet34": Way(2, 20_000, streams=2),
    "retinanet": Way(2, 20_000, streams=2),
    # harness_bert takes what is there, one batch ahead of its stream. Tokens of SQuAD v1.1: a log-normal of 0.38 with
    # median 163, cut at 384 tokens, meets the order statistics of the Offline logs, which run by falling length.
    "bert": Way(16, 0, ahead=1, spread=0.38, longest=384 / 163, gathers=False),
    # Seconds of LibriSpeech dev-clean below 15 s; the spread is that of SingleStream's percentiles.
    "rnnt": Way(1024, 0, ahead=0, spread=0.5, longest=2.5, gathers=False),
}
WHOLE_GPU = {
    "resnet50": Way(64, 2000, streams=3),
    "ssd-resnet34": Way(8, 30_000, streams=2),
    "retinanet": Way(8, 30_000, streams=2),
    "bert": replace(WAYS["bert"], max_batch=48, streams=2, ahead=2, one_queue=True),
    "rnnt": replace(WAYS["rnnt"], max_batch=1792),
}
OTHERS = Way(8, 1000)

BERT_BATCHES = {
    # (one slice, slices behind Triton's front) × (before v2.0, from v2.0 on) × (bert-99, bert-99.9)
    "A30": (((10, 6), (16, 12)), ((10, 6), (16, 6))),
    "others": (((16, 16), (16, 16)), ((12, 8), (12, 8))),
}
BERT_BATCHES_WHOLE_GPU = {"A30": ((64, 64), (64, 64)), "others": ((48, 24), (48, 64))}
"""Largest batches: of slices above; of whole GPUs as (NVIDIA's server, Triton) × (bert-99, bert-99.9)."""

BERT_SYSTEMS = {"r750xa": 8, "nc96ads": 32}
"""Largest batches of systems whose submitters chose others (Dell, v1.1; Azure, v3.0)."""

SOFT_DROP, SOFT_DROP_LATER = 0.99, 0.993
"""`soft_drop` of harness_bert; the second from v2.0 on, except on PCIe GPUs or aarch64 hosts; NC96ads (Azure): none."""

TRITON_STREAMS = {"A30": 4}
"""Instances of SSD's model under Triton; 2 on other GPUs. Other models have one."""


def way_of(row: Row, *, own: bool = True) -> Way:
    """How the row's requests are served; `own`: the row's configuration, where it has one, takes precedence."""
    whole = row.place is not None and row.place[1] == "full GPU"
    way = (WHOLE_GPU if whole else WAYS).get(row.family, OTHERS)
    triton = "triton" in row.texts["system"].lower()
    if row.family == "bert":
        way = replace(way, max_batch=_bert_batch(row, triton), soft_drop=_soft_drop(row, triton))
    names = ("max_batch", "queue_delay_us", "streams")
    batch, wait, streams = (row.numbers[name] if own else None for name in names)
    way = replace(
        way,
        max_batch=way.max_batch if batch is None else int(batch),
        wait_us=way.wait_us if wait is None or not way.gathers else wait,
        streams=way.streams if streams is None else int(streams),
    )
    if not triton:
        return way
    way = replace(way, ahead=0, window="oldest")
    if not whole:
        return _behind_front(row, way)
    # One BERT instance a GPU; bert-99 on A30 sets a delay.
    delay = 1000 if row.texts["gpu"] == "A30" and not row.benchmark.endswith("99.9") else FULL_US
    return replace(way, wait_us=delay, streams=1) if row.family == "bert" else way


def _behind_front(row: Row, way: Way) -> Way:
    """Serving behind Triton's front for many slices; RNN-T has no such rows."""
    images = row.family in ("ssd-resnet34", "retinanet")
    # ResNet-50 sets a delay; from v2.0 on only on hosts with PCIe GPUs.
    delayed = row.family == "resnet50" and (not _later(row) or _has(row, "pcie"))
    return replace(
        way,
        wait_us=way.wait_us if delayed else FULL_US,
        streams=TRITON_STREAMS.get(row.texts["gpu"], 2) if images else 1,
        front=True,
    )


def _later(row: Row) -> bool:
    """Whether the row's round is v2.0 or later."""
    return not row.texts["round"].startswith(("v0", "v1"))


def _has(row: Row, *words: str) -> bool:
    return any(word in row.texts["system"].lower() for word in words)


def _bert_batch(row: Row, triton: bool) -> int:
    for system, batch in BERT_SYSTEMS.items():
        if _has(row, system):
            return batch
    if row.place is not None and row.place[1] == "full GPU":
        whole = BERT_BATCHES_WHOLE_GPU
        return whole.get(row.texts["gpu"], whole["others"])[triton][row.benchmark.endswith("99.9")]
    many = triton and row.place is not None and row.place[0] > 1
    of_gpu = BERT_BATCHES.get(row.texts["gpu"], BERT_BATCHES["others"])
    return of_gpu[many][_later(row)][row.benchmark.endswith("99.9")]


def _soft_drop(row: Row, triton: bool) -> float:
    if triton or _has(row, "nc96ads"):
        return 1.0
    if row.place is not None and row.place[1] == "full GPU":
        return SOFT_DROP_LATER if row.texts["gpu"] == "A30" else 1.0 if _has(row, "pcie") else SOFT_DROP
    return SOFT_DROP if not _later(row) or _has(row, "pcie", "aarch64") else SOFT_DROP_LATER
