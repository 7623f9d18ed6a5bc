"""The response times of a Server row from the SingleStream and Offline results of its slice.

Two points give the line of a batch's time, the submitter's configuration says how batches are formed, and the rest
are the constants below: what the code of the submitters' server does, and four numbers fitted to rows of v1.0 and
v1.1 (`Fitted`). Server results play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.mlperf_rows import Row, own_offline, own_single
from torchsplit_core.hardware import neighbour_load
from torchsplit_core.simulation import Batcher, SliceService, serve_by_streams, service_from_two_points

REQUESTS = 300_000
WARM_UP = 0.05
PERCENTILES = (50, 95, 99)

BUSIEST, BEYOND = 0.95, 1.1
"""Server's rate on a slice is found by a limit of its tail: no stored row is above 0.93 of what its two points carry.
One above 0.95 carried its rate all the same, so its points are taken to be that much too slow; beyond 1.1 they are of
something else."""

GPUS = {"A30": "A30-24GB"}
"""GPUs of the rows whose name in the catalogue is another."""


@dataclass(frozen=True)
class Fitted:
    """What two points do not tell, the same for every row.

    `floor_share`: how much of a batch's floor keeps the slice from other streams. `mixed`: a request's time in a
    batch of mixed lengths over that of Offline, which sorts by length. `precision`: the time of one request alone goes
    with this power of Offline's time a request when only the precision changes. `hop_ms`: from the end of a batch until
    its stream takes the next: the way through queues and answers that SingleStream does not wait for.
    """

    floor_share: float = 0.75
    mixed: float = 1.03
    precision: float = 0.8
    hop_ms: float = 0.02


@dataclass(frozen=True)
class Way:
    """How a benchmark is served: of the configuration what holds where a row has none.

    Work of a request is log-normal with `spread` as the deviation of its logarithm, cut at `longest` medians; 0: all
    the same. `put_off`: the share that the server holds back to the end of the run. `gathers`: whether it waits
    for batches to fill.
    """

    max_batch: int
    wait_us: float
    streams: int = 1
    ahead: int = 0
    spread: float = 0.0
    longest: float = 1.0
    put_off: float = 0.0
    gathers: bool = True


WAYS = {
    # Configurations of the 1g slices in mlcommons/inference_results_v1.1, closed/NVIDIA/configs.
    "resnet50": Way(8, 1000),
    "ssd-resnet34": Way(2, 20_000, streams=2),
    "retinanet": Way(2, 20_000, streams=2),
    # harness_bert there: takes what is there, and does so one batch ahead of its stream; soft_drop 0.99 puts off just
    # under 1 % of the requests (0.95 % by the means of its logs). Tokens of SQuAD v1.1: order statistics of the Offline
    # logs, which run by falling length, are met by a log-normal of 0.38 with median 163, cut at 384 tokens.
    "bert": Way(16, 0, ahead=1, spread=0.38, longest=384 / 163, put_off=0.0095, gathers=False),
    # Seconds of LibriSpeech dev-clean below 15 s, as SingleStream's percentiles spread.
    "rnnt": Way(1024, 0, ahead=0, spread=0.5, longest=2.5, gathers=False),
}
WHOLE_GPU = {
    "resnet50": Way(64, 2000, streams=3),
    "ssd-resnet34": Way(8, 30_000, streams=2),
    "retinanet": Way(8, 30_000, streams=2),
    "bert": replace(WAYS["bert"], max_batch=48, streams=2),
    "rnnt": replace(WAYS["rnnt"], max_batch=1792),
}
OTHERS = Way(8, 1000)


@dataclass(frozen=True)
class Prediction:
    """p50, p95 and p99 in ms, or why there are none."""

    times_ms: tuple[float, float, float] | None
    missing: str = ""


def way_of(row: Row) -> Way:
    """How the row's requests are served: its own configuration where it has one."""
    known = WHOLE_GPU if row.place is not None and row.place[1] == "full GPU" else WAYS
    way = known.get(row.family, OTHERS)
    batch, wait, streams = (row.numbers[name] for name in ("max_batch", "queue_delay_us", "streams"))
    way = replace(
        way,
        max_batch=way.max_batch if batch is None else int(batch),
        wait_us=way.wait_us if wait is None or not way.gathers else wait,
        streams=way.streams if streams is None else int(streams),
    )
    return replace(way, ahead=0, put_off=0.0) if _triton(row) else way


def _triton(row: Row) -> bool:
    return "triton" in row.texts["system"].lower()


def predict(
    server: Row, rows: Sequence[Row], fitted: Fitted | None = None, requests: int = REQUESTS
) -> Prediction:
    """The response times of a Server row at its measured rate."""
    fitted = fitted or Fitted()
    if server.place is None or server.rate is None:
        return Prediction(None, "no rate or unreadable slices")
    way = way_of(server)
    service = service_of(server, rows, way, fitted)
    if service is None:
        return Prediction(None, "no SingleStream or Offline result")
    rate = server.rate / server.place[0] * (1 - way.put_off)
    batcher = Batcher(
        way.max_batch,
        way.wait_us / 1e3,
        way.streams,
        way.ahead,
        "oldest" if _triton(server) else "free",
        fitted.floor_share,
        fitted.hop_ms,
    )
    busy = rate / (1e3 * capacity_per_ms(service, batcher))
    if server.place[0] == 1 and BUSIEST < busy <= BEYOND:
        service = SliceService(*(ms * BUSIEST / busy for ms in (service.floor_ms, service.per_request_ms)))
    elif busy >= 1:
        return Prediction(None, "more than the two points can carry")
    gaps, work = _drawn(requests, way.spread, way.longest)
    response = serve_by_streams(np.cumsum(gaps) * (1e3 / rate), service, batcher, work)
    # What is put off answers after the run: every percentile is one of more of the others.
    places = [min(100.0, percent / (1 - way.put_off)) for percent in PERCENTILES]
    found = np.percentile(response[int(WARM_UP * requests) :], places)
    return Prediction((float(found[0]), float(found[1]), float(found[2])))


def capacity_per_ms(service: SliceService, batcher: Batcher) -> float:
    """Requests per ms that full batches on all streams complete."""
    size = batcher.max_batch
    alone = batcher.streams * size / (batcher.hop_ms + service.batch_ms(size))
    if batcher.streams == 1:
        return alone
    return min(alone, size / (batcher.floor_share * service.floor_ms + size * service.per_request_ms))


def service_of(server: Row, rows: Sequence[Row], way: Way, fitted: Fitted) -> SliceService | None:
    """The line of the Server row's slice beside the neighbours it had; None without two points."""
    offline, single = own_offline(server, rows), own_single(server, rows)
    if offline is None or single is None:
        return None
    single_ms = single.single_ms(mean=way.spread > 0)
    assert single_ms is not None
    share = _share(server)
    rate = _alone(offline)
    if single.benchmark != server.benchmark:
        other = own_offline(single, rows)
        if (
            other is not None
            and other.benchmark == single.benchmark
            and offline.benchmark == server.benchmark
        ):
            single_ms *= (_alone(other) / rate) ** fitted.precision
    if single.loaded:
        single_ms *= _share(single)
    mixed = fitted.mixed if way.spread else 1.0
    alone = service_from_two_points(single_ms, rate / mixed)
    return alone.beside_neighbours(share)


def _share(row: Row) -> float:
    """What the row's slice keeps beside its neighbours; where nobody measured it, all."""
    if not row.loaded:
        return 1.0
    gpu = row.texts["gpu"]
    found = neighbour_load(GPUS.get(gpu, gpu))
    return found.share if found else 1.0


def _alone(offline: Row) -> float:
    """Samples/s of one slice of an Offline row, its neighbours idle."""
    assert offline.place is not None and offline.rate is not None
    return offline.rate / offline.place[0] / _share(offline)


@cache
def _drawn(
    requests: int, spread: float, longest: float
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Times between requests of mean 1 and the requests' work, the same for every row; None: all alike."""
    rng = np.random.default_rng(0)
    gaps = rng.standard_exponential(requests)
    if not spread:
        return gaps, None
    work = np.minimum(np.exp(rng.normal(0.0, spread, requests)), longest)
    return gaps, work / work.mean()
