"""A host's rates are measured once, saved, and used by estimates on its cores."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from torchsplit_core.profiling import host_rates
from torchsplit_core.profiling.host_rates import HostRates, measure_rates, rate_at, saved_rates
from torchsplit_core.strategy.cost_model.interval import unseen
from torchsplit_core.strategy.graph_model.calibration import step_offset
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.step import GraphStepModel
from torchsplit_core.strategy.search.machines import host_threads, read_fleet
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.request import MeasuredStep, StrategyNodes
from torchsplit_core.values.training import ParallelConfig, TrainingJob
from torchsplit_core.workflow import trace

RATES = HostRates(
    "a processor", 1, ((1e3, 1e9), (1e9, 1e11)), ((1e4, 1e10), (1e8, 5e9)), 0.5, 1e-6, 2e-6, 1e-5, 1e-4, 1e9
)
FLEET = (StrategyNodes(1, 2, "CPU-1c"),)


@pytest.mark.parametrize(("size", "rate"), [(1.0, 1e9), (1e3, 1e9), (1e6, 1e10), (1e9, 1e11), (1e12, 1e11)])
def test_a_rate_lies_on_a_line_of_the_logarithms(size: float, rate: float) -> None:
    assert rate_at(RATES.products, size) == pytest.approx(rate)


@pytest.mark.repeated
@pytest.mark.torch
@pytest.mark.slow
def test_this_host_is_measured_in_units_that_make_sense() -> None:
    rates = measure_rates(1)
    assert all(1e7 < rate < 1e13 for _, rate in rates.products)
    assert all(1e7 < rate < 1e13 for _, rate in rates.moved)
    for seconds in (rates.operation_s, rates.optimizer_s, rates.exchange_s):
        assert 1e-8 < seconds < 1.0
    assert 0 < rates.convolution < 100 and 0 <= rates.backward_operation_s < 1.0
    assert [size for size, _ in rates.products] == sorted(size for size, _ in rates.products)


def test_rates_are_measured_once_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def measure(threads: int) -> HostRates:
        measured.append(threads)
        return replace(RATES, threads=threads)

    monkeypatch.setattr(host_rates, "measure_rates", measure)
    assert saved_rates(tmp_path, 1) is None
    first = host_rates.host_rates(tmp_path, 1)
    assert host_rates.host_rates(tmp_path, 1) == first == saved_rates(tmp_path, 1)
    assert measured == [1]
    assert host_rates.host_rates(tmp_path, len(os.sched_getaffinity(0)) + 1) is None
    for content in ("[", "[]", json.dumps({host_rates._key(1): {"rates": {"cpu": 1}}})):
        (tmp_path / host_rates.RATES_FILE).write_text(content)
        assert saved_rates(tmp_path, 1) is None


def test_a_probe_that_fails_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_rates.sys, "executable", "/bin/false")
    with pytest.raises(InputFault, match="this host: could not be measured"):
        measure_rates(1)


@pytest.mark.parametrize(("type_", "threads"), [("CPU-4c", 4), ("A100-80GB", None)])
def test_cores_of_a_fleet(type_: str, threads: int | None) -> None:
    assert host_threads((StrategyNodes(1, 2, type_),)) == threads
    assert host_threads((StrategyNodes(1, 2, type_),) * 2) is None


@pytest.mark.torch
def test_a_step_is_estimated_from_the_rates_part_by_part() -> None:
    """Twice as fast a host halves what is computed; samples and exchanges are added as they were measured."""
    model = GraphCostModel(trace("sample:diamond"))
    (machine,) = read_fleet(FLEET, "fp32")
    job, choices = TrainingJob(8, "fp32"), ParallelConfig(data=2, micro_batch=4)

    def parts(rates: HostRates, sample_s: float = 0.0):
        probed = replace(machine, rates=rates)
        return GraphStepModel(model, probed, job, unseen(), (), sample_s).estimate(choices).parts_s

    plain = parts(RATES)
    faster = parts(
        replace(
            RATES,
            products=tuple((size, 2 * rate) for size, rate in RATES.products),
            moved=tuple((size, 2 * rate) for size, rate in RATES.moved),
        )
    )
    assert faster.compute == pytest.approx(plain.compute / 2)
    assert faster.host == pytest.approx(plain.host) and plain.host > 0
    assert parts(RATES, 1e-3).fixed - plain.fixed == pytest.approx(4e-3)
    weights = sum(model.parameters)
    assert plain.data_communication == pytest.approx(1e-4 + 4.0 * weights / 1e9)
    assert plain.optimizer >= 1e-5 * model.weight_tensors
    assert plain.total == pytest.approx(sum(getattr(plain, name) for name in plain.__slots__))


@pytest.mark.torch
def test_a_measured_step_moves_the_estimate_towards_it() -> None:
    model = GraphCostModel(trace("sample:diamond"))
    (machine,) = read_fleet((StrategyNodes(1, 1, "CPU-1c"),), "fp32")
    probed, job = replace(machine, rates=RATES), TrainingJob(8, "fp32")
    alone = step_offset(model, probed, job, (), ())
    estimate = GraphStepModel(model, probed, job, alone).estimate(ParallelConfig(micro_batch=8))
    slow = (MeasuredStep(8, 3.0 * estimate.seconds),)
    told = step_offset(model, probed, job, slow, ())
    again = GraphStepModel(model, probed, job, told).estimate(ParallelConfig(micro_batch=8))
    assert estimate.seconds < again.seconds < 3.0 * estimate.seconds
    assert again.high_s / again.low_s < estimate.high_s / estimate.low_s
