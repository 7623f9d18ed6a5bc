"""What the exchanges of a step take, by kind, and the folder's record of a choice."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.futures import Future

from torchsplit_core.training.communication import measurement, timers
from torchsplit_core.training.communication.record import (
    ExchangeKey,
    ExchangeRecord,
    read_exchange,
    save_exchange,
)
from torchsplit_core.training.communication.timers import ExchangeTimer
from torchsplit_core.values.strategy.communication import CommunicationRequest


def exchanged(spans: list[tuple[float, float]], monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The seconds of a backward pass whose buckets begin and end so, in the order of their beginnings."""
    timer, clock = ExchangeTimer(), iter(())
    monkeypatch.setattr(timers.time, "perf_counter", lambda: next(clock))
    futures: list[Future[Any]] = []

    def hook(_: Any) -> Future[Any]:
        futures.append(Future())
        return futures[-1]

    run = timer.timed_hook(hook)
    clock = iter([began for began, _ in spans])
    means = [run(None) for _ in spans]
    for future, (_, ended) in zip(futures, spans, strict=True):
        clock = iter([ended])
        future.set_result(torch.tensor(ended))
    assert [float(mean.wait()) for mean in means] == [ended for _, ended in spans]
    timer.end_backward()
    return timer.take()


@pytest.mark.parametrize(
    ("spans", "overlapped", "exposed"),
    [
        ([(0.0, 1.0)], 0.0, 1.0),
        ([(0.0, 1.0), (2.0, 2.5)], 1.0, 0.5),
        ([(0.0, 4.0), (2.0, 5.0)], 2.0, 3.0),
        ([(0.0, 2.0), (1.0, 2.0), (4.0, 4.0)], 2.0, 0.0),
    ],
)
def test_an_exchange_is_exposed_from_when_the_last_bucket_is_ready(
    spans: list[tuple[float, float]], overlapped: float, exposed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert exchanged(spans, monkeypatch) == {
        "all_reduce_exposed": exposed,
        "all_reduce_overlapped": overlapped,
    }


def test_kinds_add_up_over_a_step_and_are_left_out_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timer, clock = ExchangeTimer(), itertools.count()
    monkeypatch.setattr(timers.time, "perf_counter", lambda: float(next(clock)))
    timer.end_backward()
    for _ in range(3):
        with timer.timed(timers.AGREEMENT):
            pass
    assert timer.take() == {"agreement": 3.0} and timer.take() == {}


def test_a_failed_exchange_raises_where_the_mean_is_taken() -> None:
    broken: Future[Any] = Future()
    mean = ExchangeTimer().timed_hook(lambda bucket: broken)(None)
    broken.set_exception(RuntimeError("the peer is gone"))
    with pytest.raises(RuntimeError, match="the peer is gone"):
        mean.wait()


def test_a_type_that_the_backend_refuses_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise RuntimeError("Invalid scalar type")

    monkeypatch.setattr(torch.distributed, "all_reduce", refuse)
    assert not measurement.supports(torch.bfloat16, None, torch.device("cpu"))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *given, **named: None)
    assert measurement.supports(torch.bfloat16, None, torch.device("cpu"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bytes_per_s", "sizes"),
    [
        (1e12, (4096, 65536, 2**20, 2**23)),
        (3e7, (4096, 65536, 2**20)),
        (1e6, (4096, 65536)),
        (1e3, (4096, 65536)),
    ],
)
def test_as_large_exchanges_are_timed_as_the_budget_allows(
    bytes_per_s: float, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def timed(exchange: Any, buffer: torch.Tensor, group: Any) -> tuple[float, float]:
        calls.append(buffer.nbytes)
        return 1e-3 + buffer.nbytes / bytes_per_s, 1e-4

    monkeypatch.setattr(measurement, "_time", timed)
    times = measurement.measure_exchange(lambda buffer: None, None, torch.device("cpu"), 0.4)  # type: ignore[arg-type]
    assert times.sizes == sizes and times.processor_s == (1e-4,) * len(sizes)
    assert times.seconds == pytest.approx([1e-3 + size / bytes_per_s for size in sizes])
    # What takes longer than the budget is timed once.
    assert bytes_per_s > 1e3 or calls == [4096, 65536]


def test_a_record_comes_back_and_what_no_run_writes_is_none(tmp_path: Path) -> None:
    assert read_exchange(tmp_path) is None
    request = CommunicationRequest(("bf16", "powersgd"), powersgd_rank=2)
    record = ExchangeRecord(ExchangeKey(request, 4, 2, "gloo", 10), "bf16", 4.0, "why", before_s=1.0)
    save_exchange(tmp_path, record)
    assert read_exchange(tmp_path) == record
    path = tmp_path / "watch" / "communication.json"
    for text in ("{", "[]", '{"hook": "warp"}', " " * 2**19):
        path.write_text(text)
        assert read_exchange(tmp_path) is None
