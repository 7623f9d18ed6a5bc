"""Operations are timed under the names of the graph; runs are summarised as promised."""

import time
from math import comb, exp, log, sqrt

import pytest
import torch
from torch import nn

from tests.support.profiling.export import export, sample, to_graph
from tests.support.seeds import repeated
from torchsplit_core.profiling import DeviceAnnotator, RuntimeAnnotator
from torchsplit_core.profiling.measuring import timing
from torchsplit_core.profiling.measuring.host_copies import HostCopies
from torchsplit_core.profiling.measuring.rounds import (
    CpuTime,
    TimingRound,
    read_cpu_time,
    undisturbed_blocks,
    unsteady_reason,
)
from torchsplit_core.profiling.measuring.run_statistics import (
    next_block_interval,
    percentile,
    percentile_ranks,
    summarise,
)
from torchsplit_core.profiling.measuring.timing import LEAST_RUNS, REPEATS, all_finite, time_run, time_runs
from torchsplit_core.values import InternalFault


@repeated("name", ["cond", "clip", "ocr"], kept=1)
def test_every_operation_is_timed_under_its_name_in_the_graph(name):
    client, _, exported = sample(name)
    graph = to_graph(exported)
    timings = RuntimeAnnotator(exported).annotate(client.get_example_inputs(2), budget_s=0.01)
    assert [item.id for item in timings] == [node.id for node in graph.ops]
    for item in timings:
        assert item.runs >= 2
        assert 0 <= item.least_ms <= item.mean_ms <= item.most_ms
        assert item.device == "cpu"
    tensors = {node.id: node.output_bytes for node in graph.ops if node.shape is not None}
    assert {item.id: item.output_bytes for item in timings if item.id in tensors} == tensors


class Keyword(nn.Module):
    """Takes keyword arguments, in an order that differs from the caller's, and notes whether it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.calls = 0
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, x: torch.Tensor, *, plus: torch.Tensor, minus: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.calls += 1
            self.modes.add((self.training, torch.is_grad_enabled()))
        return x * self.scale + plus - minus


def test_keyword_arguments_reach_their_places_at_every_batch():
    def inputs(batch):
        return (torch.ones(batch, 4),), {"minus": torch.ones(batch, 4), "plus": torch.ones(batch, 1)}

    args, kwargs = inputs(2)
    exported = torch.export.export(
        Keyword(),
        args,
        kwargs,
        dynamic_shapes={name: {0: torch.export.Dim.AUTO} for name in ("x", "plus", "minus")},
    )
    annotator = RuntimeAnnotator(exported)
    by_batch = {batch: annotator.annotate(*inputs(batch), budget_s=0.01) for batch in (2, 5)}
    assert {batch: sum(item.output_bytes for item in found) for batch, found in by_batch.items()} == {
        2: 3 * 2 * 4 * 4,
        5: 3 * 5 * 4 * 4,
    }


def test_end_to_end_runs_are_repeated_in_eval_mode_without_gradients():
    model = Keyword().train()
    looked = []
    inputs = {"plus": torch.ones(1), "minus": torch.ones(1)}
    # A budget that no run takes half of, however busy the machine: such a run would stand in for the warm-up.
    repeats = time_runs(model, (torch.ones(2, 4),), inputs, 2.0, look=looked.append)
    assert len(repeats) == REPEATS and all(repeats)
    runs = [spent for repeat in repeats for spent in repeat]
    assert len(looked) == 1 and all_finite(looked) and not all_finite([looked[0] / 0])
    assert len(runs) >= LEAST_RUNS and all(spent > 0 for spent in runs)
    assert model.calls > len(runs)  # a run at least to warm up
    assert model.modes == {(False, False)}


@repeated(("budget_s", "most"), [(0.5, 300), (2.0, 300), (7.0, 1050)], kept=2)
def test_a_longer_budget_is_for_more_runs(budget_s, most, monkeypatch):
    """On a clock that stands still, with blocks that have no least time, nothing but their number ends the runs."""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(timing, "BLOCK_S", 0.0)
    assert sum(map(len, time_runs(nn.Identity(), (torch.ones(1),), {}, budget_s))) == most


def test_runs_that_compile_count_for_nothing_and_repeats_and_seed_are_as_asked(monkeypatch):
    now_s = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: round(1e9 * now_s))

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drawn: list[float] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal now_s
            self.drawn.append(float(torch.rand(())))
            now_s += 1.0 if len(self.drawn) <= 2 else 0.01
            return x

    model, looked = Slow(), []
    timed = time_runs(
        model, (torch.ones(1),), {}, 0.5, repeats=5, seed=7, unsteady=2, look=lambda _: looked.append(len(model.drawn))
    )  # fmt: skip
    assert len(timed) == 5 and all(timed) and looked == [3]
    assert [ms for runs in timed for ms in runs] == pytest.approx([10.0] * sum(map(len, timed)))
    torch.manual_seed(7)
    assert set(model.drawn) == {float(torch.rand(()))}


@pytest.mark.parametrize("repeats", [1, 2])
def test_few_repeats_still_have_three_runs(repeats):
    timed = time_runs(Keyword(), (torch.ones(2, 4),), {"plus": torch.ones(1), "minus": torch.ones(1)}, 0.0001,
                      repeats=repeats)  # fmt: skip
    assert len(timed) == repeats and sum(map(len, timed)) >= LEAST_RUNS


def test_copies_bring_the_inputs_in_and_the_outputs_out_in_every_run():
    """With the processor's memory in the place of a GPU's."""
    given = torch.tensor([1.0, 2.0])
    copies = HostCopies((given,), {"n": 3}, host=torch.empty_like)
    model = Keyword()
    # Whatever happens to the device's own copy, a run begins with the host's.
    given.zero_()
    inputs = {"plus": torch.ones(1), "minus": torch.ones(1)}
    runs = time_runs(model, (given,), inputs, 0.05, copies=copies)
    assert sum(map(len, runs)) >= LEAST_RUNS
    assert given.tolist() == [1.0, 2.0]
    (out,) = copies.outputs
    with torch.inference_mode():
        assert torch.equal(out, model(given, **inputs))
    # Outputs of another shape get another place.
    copies.run_with_copies(lambda: {"a": torch.ones(3), "b": 4})
    assert [item.shape for item in copies.outputs] == [(3,)]


def test_devices_follow_the_device_argument_and_then_the_inputs():
    class Made(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return torch.zeros(4, device="cpu") + 1, x.relu()

    with torch.device("meta"):
        exported = export(Made(), (torch.ones(2, 4),))
    devices = DeviceAnnotator(exported).annotate()
    assert devices["x"] == "meta" and devices["relu"] == "meta"
    assert devices["zeros"] == "cpu" and devices["add"] == "cpu"


def test_percentiles_interpolate():
    ordered = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [percentile(ordered, share) for share in (0, 0.5, 0.95, 1)] == [1, 3, pytest.approx(4.8), 5]
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("count", [1, 4, 5, 8, 20, 58, 59, 101, 300])
def test_percentile_intervals_err_in_five_percent_on_each_side_and_are_the_narrowest(count, share):
    low, high = percentile_ranks(count, share)

    def at_most(hits):
        return sum(comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(hits + 1))

    # The run of rank r is above the percentile where at most r runs are below it.
    for rank in range(count):
        assert (at_most(rank) <= 0.05) == (low is not None and rank <= low)
        assert (1 - at_most(rank) <= 0.05) == (high is not None and rank >= high)


def test_five_runs_bound_a_median_and_fifty_nine_a_95th_percentile():
    assert percentile_ranks(4, 0.5) == (None, None) and percentile_ranks(5, 0.5) == (0, 4)
    assert percentile_ranks(58, 0.95)[1] is None and percentile_ranks(59, 0.95)[1] == 58


def test_few_runs_are_bounded_by_their_extremes_and_none_is_our_fault():
    summary = summarise([[3.0, 1.0, 2.0]])
    assert (summary.latency.p50.value, summary.latency.runs) == (2.0, 3)
    assert (summary.mean_low_ms, summary.mean_high_ms) == (1.0, 3.0)
    assert summary.latency.p50.low is None  # three runs hold a median with 75 % only
    with pytest.raises(InternalFault):
        summarise([[]])


@pytest.mark.parametrize("count", [1, 2, 4, 7, 30, 90])
def test_a_percentile_never_leaves_its_interval(count):
    found = summarise([[float(run) for run in range(1, count + 1)]]).latency
    for item in (found.p50, found.p95, found.p99):
        assert (item.low or 0) <= item.value <= (item.high or count)


def test_the_mean_is_that_of_a_usual_block_and_holds_what_a_loop_holds():
    """A loop's rate is runs over their time: a slow tenth counts, a block that was disturbed does not."""
    usual = [1.0] * 9 + [2.0]
    summary = summarise([usual, usual, [9.0] * 10])
    assert summary.mean_ms == pytest.approx(1.1) and summary.latency.p50.value == 1.0
    assert summary.mean_low_ms <= 1.1 and summary.mean_high_ms >= 9.0


def test_blocks_say_where_the_next_one_lies():
    """By Student's t: of three blocks 2.92 · s · √(4/3) on the logarithm, to 2 %."""
    medians = [exp(log(10.0) + step) for step in (-0.01, 0.0, 0.01)]
    low, high = next_block_interval(medians)
    assert log(10.0 / low) == pytest.approx(0.01 * 2.92 * sqrt(4 / 3), rel=0.02)
    assert low * high == pytest.approx(100.0)
    summary = summarise([[median] * 9 for median in medians])
    assert (summary.mean_low_ms, summary.mean_high_ms) == (low, high)
    assert next_block_interval(medians[:2]) == ()


def test_the_clock_is_read_when_the_seed_is_set(monkeypatch):
    """To seed every generator takes longer than a small model."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])

    class Slow:
        def manual_seed(self, seed: int) -> None:
            now[0] += 10**9

    monkeypatch.setattr(torch, "default_generator", Slow())
    assert time_run(lambda: now.__setitem__(0, now[0] + 10**6), "cpu", 0)[1] == 1.0
    assert now == [10**9 + 10**6]


def test_busy_looks_do_not_count_where_quiet_ones_are_enough_and_are_told_of_else():
    quiet, busy = TimingRound(((1.0,), (1.1,), (1.0,))), TimingRound(((9.0,), (9.0,)), stolen_share=0.4)
    assert undisturbed_blocks([busy, quiet]) == quiet.blocks and unsteady_reason([busy, quiet]) == ""
    assert undisturbed_blocks([busy, TimingRound(((1.0,),))]) == (*busy.blocks, (1.0,))
    assert "took 40 % of its time" in unsteady_reason([busy])
    parted = [TimingRound(((1.0,), (1.0,))), TimingRound(((2.0,),))]
    assert "from 1 to 2 ms" in unsteady_reason(parted) and unsteady_reason(parted[:1]) == ""


def test_time_that_others_took_is_a_share_of_what_could_have_been_run():
    before = CpuTime(clock_ns=0, ran_ns=100, waited_ns=10, stolen_ticks=5)
    assert CpuTime(200, 400, 110, 5).stolen_share_since(before) == 0.25  # threads on several cores
    assert CpuTime(10_000, 400, 110, 5).stolen_share_since(before) == 0.01  # one that mostly sleeps
    assert CpuTime(10, 100, 10, 6).stolen_share_since(before) == 0.0  # a tick is no share of anything
    assert CpuTime(10, 100, 10, 50).stolen_share_since(before) == 1.0
    assert read_cpu_time().ran_ns > 0


def test_repeats_that_differ_widen_the_interval_of_the_mean():
    steady = summarise([[1.0] * 40, [1.0] * 40])
    drifting = summarise([[1.0] * 41, [2.0] * 40])
    assert (steady.mean_low_ms, steady.mean_high_ms) == (1.0, 1.0)
    assert (drifting.mean_low_ms, drifting.mean_high_ms) == (1.0, 2.0)
