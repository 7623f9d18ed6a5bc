"""Sizes of LLMs: rates that a direct simulation confirms, what fits, counts, prices and order."""

from dataclasses import replace

import pytest

from tests.support.paths import ROOT
from tests.support.seeds import in_blocks
from torchsplit_core.llm import engine_device, engine_memory, published_decoder, quantized
from torchsplit_core.serving_estimates.known import known_factors
from torchsplit_core.simulation import simulate
from torchsplit_core.simulation.continuous.steady_state import ClosedForm, MeanLengths
from torchsplit_core.sizing.engine_row import SizingRow, simulation_request
from torchsplit_core.sizing.load_curve import load_curve
from torchsplit_core.sizing.request import EngineSettings, OfferedGpu, SizingRequest, TokenLimits
from torchsplit_core.sizing.size import SizingTable, size
from torchsplit_core.sizing.summary import describe_unfit, headline
from torchsplit_core.values import EngineServer, InputFault, StepLine
from torchsplit_core.values.simulation.outcome import ModelLoad

EXAMPLES = ROOT / "examples"
MODEL = "llama-3.1-8b"
SIZES = published_decoder(MODEL)


def request(*types: str, **more: object) -> SizingRequest:
    gpus = tuple(OfferedGpu(name) for name in types or ("A100-80GB",))
    sizes = more.pop("sizes", SIZES)
    settings = {"requests": 120, "limits": TokenLimits(500.0, 50.0)} | more
    return SizingRequest(MODEL, sizes, gpus, **settings)


def row_of(
    table: SizingTable, gpu_type: str, profile: str | None = None, tensor_parallel: int = 1
) -> SizingRow:
    wanted = (gpu_type, profile, tensor_parallel)
    return next(row for row in table.rows if (row.gpu_type, row.profile, row.tensor_parallel) == wanted)


def simulated(asked: SizingRequest, row: SizingRow, rate_rps: float) -> ModelLoad:
    """The row's engine alone at this rate, by `simulate`."""
    return simulate(simulation_request(asked, row.engine, rate_rps, row.requests)).models[0]


def keeps(asked: SizingRequest, load: ModelLoad) -> bool:
    limits = asked.limits
    return load.stable is not False and all(
        limit is None or times.p95 is None or times.p95 <= limit
        for times, limit in ((load.ttft_ms, limits.max_ttft_ms), (load.tpot_ms, limits.max_tpot_ms))
    )


@pytest.mark.parametrize(
    "more",
    [
        {"limits": TokenLimits(400.0, 45.0)},
        {"limits": TokenLimits(max_ttft_ms=250.0), "length_cv": 0.6},
        {
            "limits": TokenLimits(max_tpot_ms=30.0),
            "prompt_tokens": 3000,
            "cached_tokens": 2500,
            "output_tokens": 60,
        },
        {"limits": TokenLimits(900.0, 80.0), "output_tokens": 1},
    ],
    ids=["both", "drawn lengths", "cached", "one token"],
)
def test_limits_hold_at_the_rate_and_fail_just_above_it(more):
    asked = request("L40S-48GB", "A100-80GB", **more)
    rows = [row for row in size(asked, most_simulated=4).best if row.rate_rps]
    assert len(rows) > 1
    for row in rows:
        load = simulated(asked, row, row.rate_rps)
        assert keeps(asked, load), row
        assert load.ttft_ms.p95 == pytest.approx(row.ttft_ms)
        assert (
            load.tpot_ms.p95 is None
            if row.tpot_ms is None
            else load.tpot_ms.p95 == pytest.approx(row.tpot_ms)
        )
        assert load.goodput == pytest.approx(row.goodput)
        assert not keeps(asked, simulated(asked, row, 1.02 * row.rate_rps)), row
        assert row.low_rps <= row.rate_rps <= row.high_rps and row.low_rps < row.high_rps
        assert row.basis == "estimated"


def test_without_limits_the_rate_is_the_capacity():
    asked = request("H100-SXM5-80GB", limits=TokenLimits(), rate_rps=40.0)
    for row in size(asked, most_simulated=3).best:
        load = simulated(asked, row, row.rate_rps / 2)
        assert row.rate_rps == load.capacity_rps
        assert row.goodput is None and row.binds in ("rate", "KV")
        share = simulated(asked, row, 40.0 / row.engines)
        assert row.ttft_ms == pytest.approx(share.ttft_ms.p95) and 40.0 / row.engines < row.rate_rps


def test_memory_is_that_of_the_engine_and_what_does_not_fit_says_why():
    asked = request("A100-80GB")
    table = size(asked, most_simulated=1)
    whole = row_of(table, "A100-80GB")
    memory = engine_memory(SIZES, engine_device("A100-80GB"))
    assert (whole.weights_gib, whole.kv_gib, whole.kv_blocks) == (
        memory.weights_gib, memory.kv_gib, memory.kv_blocks,
    )  # fmt: skip
    small = row_of(table, "A100-80GB", "1g.10gb")
    assert not small.fits and small.binds == "memory" and "weights 15 GiB" in small.note
    assert (small.rate_rps, small.engines, small.gpus, small.ttft_ms) == (None, None, None, None)
    assert "A100-80GB 1g.10gb" in describe_unfit(table)[0]
    long = request("A100-80GB", prompt_tokens=30_000)
    short_cache = row_of(size(long, most_simulated=1), "A100-80GB", "2g.20gb")
    assert not short_cache.fits and short_cache.binds == "KV" and "30,256" in short_cache.note
    assert 0 < short_cache.max_context < 30_256


def test_max_model_len_is_held_by_the_cache_or_the_engine_does_not_start():
    table = size(request("A100-80GB", settings=EngineSettings(max_model_len=100_000)), most_simulated=1)
    assert row_of(table, "A100-80GB").max_context == 100_000
    refused = row_of(table, "A100-80GB", "2g.20gb")
    assert not refused.fits and refused.binds == "KV" and "--max-model-len" in refused.note


def test_engines_share_gpus_as_slices_fit_on_them_and_prices_order_the_rows():
    gpus = (OfferedGpu("H100-SXM5-80GB", 4.0), OfferedGpu("L40S-48GB", 1.0), OfferedGpu("A100-80GB"))
    table = size(replace(request(rate_rps=30.0), gpus=gpus))
    slices = row_of(table, "H100-SXM5-80GB", "3g.40gb")
    assert slices.gpus == -(-slices.engines // 2) and slices.cost == 4.0 * slices.gpus
    group = row_of(table, "L40S-48GB", None, 2)
    assert group.gpus == 2 * group.engines and group.cost == group.gpus
    assert row_of(table, "A100-80GB").cost is None
    reaching = [row for row in table.rows if row.reaches]
    assert all(row.engines * row.rate_rps >= 30.0 > (row.engines - 1) * row.rate_rps for row in reaching)
    costs = [row.cost for row in reaching if row.cost is not None]
    assert costs == sorted(costs) and all(row.cost is None for row in reaching[len(costs) :])
    unpriced = [
        row.gpus for row in size(request("H100-SXM5-80GB", "L40S-48GB", rate_rps=30.0)).rows if row.reaches
    ]
    assert unpriced == sorted(unpriced)


def test_whole_types_have_no_slices():
    table = size(replace(request(), gpus=(OfferedGpu("A100-80GB", sliced=False),)), most_simulated=1)
    assert {row.profile for row in table.rows} == {None}
    assert [row.tensor_parallel for row in sorted(table.rows, key=lambda row: row.tensor_parallel)] == [
        1,
        2,
        4,
        8,
    ]


@pytest.mark.repeated
def test_the_best_rows_alone_are_simulated_and_equal_those_of_the_whole_table():
    asked = request("A100-80GB", "L40S-48GB", rate_rps=20.0)
    few, whole = size(asked, most_simulated=4), size(asked)
    assert len(few.best) == 4 and {row.gpu_type for row in few.best} == {"A100-80GB", "L40S-48GB"}
    assert few.rows[0] == whole.rows[0]
    for row in few.best:
        assert row == row_of(whole, row.gpu_type, row.profile, row.tensor_parallel)
    assert [row.engine is None for row in whole.rows if row.fits] == [False] * len(whole.best)


def test_where_nothing_keeps_the_limits_the_nearest_is_named():
    asked = request("A100-80GB", "H100-SXM5-80GB", limits=TokenLimits(5.0, 1.0))
    table = size(asked, most_simulated=2)
    assert not table.reaches
    near = table.rows[0]
    assert (near.rate_rps, near.engines, near.gpus, near.cost) == (0.0, None, None, None)
    ratios = [max(row.ttft_ms / 5.0, row.tpot_ms) for row in table.rows if row.fits]
    assert len(ratios) > 10 and ratios[0] == min(ratios) > 1
    text = headline(table)
    assert f"TTFT of {near.ttft_ms:.3g} ms and a TPOT of {near.tpot_ms:.3g} ms" in text
    relaxed = size(
        replace(asked, limits=TokenLimits(near.ttft_ms * 1.01, near.tpot_ms * 1.01)), most_simulated=2
    )
    assert relaxed.reaches


def test_tpot_binds_a_slow_slice_and_blocks_a_small_cache():
    table = size(request("A100-80GB", "H100-SXM5-80GB", limits=TokenLimits(2000.0, 25.0)))
    assert row_of(table, "A100-80GB", "3g.40gb").binds == "TPOT"
    table = size(request("H100-SXM5-80GB", limits=TokenLimits(2000.0, 60.0)))
    assert row_of(table, "H100-SXM5-80GB", "1g.20gb").binds == "KV"


@pytest.mark.repeated
def test_more_memory_bandwidth_and_lighter_weights_carry_more():
    rates = [
        row_of(size(request(name), most_simulated=20), name).rate_rps
        for name in ("A100-80GB", "H100-SXM5-80GB")
    ]
    assert rates[0] < rates[1]
    light = replace(request("H100-SXM5-80GB"), sizes=quantized(SIZES, "fp8"))
    quick = row_of(size(light, most_simulated=20), "H100-SXM5-80GB")
    assert quick.rate_rps > rates[1] and quick.weights_gib < 9


def test_experts_are_sized_for_the_sequences_that_run():
    asked = request("H200-141GB", sizes=published_decoder("mixtral-8x7b"), limits=TokenLimits(1000.0, 60.0))
    row = row_of(size(asked), "H200-141GB")
    assert keeps(asked, simulated(asked, row, row.rate_rps)) and row.rate_rps > 1


def test_what_a_type_or_a_group_lacks_is_left_out_with_its_reason():
    fp8 = replace(request("A100-80GB", "L40S-48GB"), sizes=quantized(SIZES, "fp8"))
    table = size(fp8, most_simulated=1)
    assert {row.gpu_type for row in table.rows} == {"L40S-48GB"}
    assert any("A100-80GB has no sourced peak for fp8" in reason for reason in table.left_out)
    with pytest.raises(InputFault, match="A100-80GB has no sourced peak for fp8"):
        size(replace(fp8, gpus=(OfferedGpu("A100-80GB"),)))
    odd = replace(SIZES, heads=28, kv_heads=4)
    table = size(request("L40S-48GB", sizes=odd), most_simulated=1)
    assert {row.tensor_parallel for row in table.rows} == {1, 2, 4}
    assert table.left_out == ("8 GPUs can not share 28 heads evenly",)


def test_times_rise_with_the_rate():
    asked = request("L40S-48GB")
    row = row_of(size(asked), "L40S-48GB")
    curve = load_curve(asked, row)
    rates = [point.rate_rps for point in curve]
    assert rates == sorted(rates) and rates[-1] > row.rate_rps
    assert curve[0].ttft_ms < curve[-1].ttft_ms and curve[0].tpot_ms < curve[-1].tpot_ms
    assert any(point.tpot_ms > 50.0 for point in curve)


@pytest.mark.repeated
@in_blocks("seed", range(24))
def test_drawn_requests_hold_and_fail_too(seed):
    limits = TokenLimits([None, 300.0, 800.0][seed % 3], [40.0, None, 90.0][seed // 3 % 3])
    asked = request(
        "A100-80GB", limits=limits, seed=seed, prompt_tokens=64 * (seed % 7 + 1), output_tokens=16 * (seed % 5 + 1),
        length_cv=(seed % 4) / 4, settings=EngineSettings(8 * (seed % 6 + 1), 512 * (seed % 3 + 1)),
    )  # fmt: skip
    for row in size(asked, most_simulated=2).best:
        if row.rate_rps and limits.given:
            assert keeps(asked, simulated(asked, row, row.rate_rps)), row
            assert not keeps(asked, simulated(asked, row, 1.02 * row.rate_rps)), row


def test_the_closed_form_is_near_the_simulation():
    engine = EngineServer(
        "e", MODEL, "whole", 64, 2048, 20_000, (StepLine(8.0, 0.0, 0.01, 1e-5), StepLine(4.0, 0.02, 0.03))
    )
    full = ClosedForm(engine, MeanLengths(512, 128)).within(None, None)
    asked = request(prompt_tokens=512, output_tokens=128)
    load = simulate(simulation_request(asked, engine, full.rate_rps / 2, 1500)).models[0]
    assert load.capacity_rps == pytest.approx(full.rate_rps, rel=0.1)
    half = ClosedForm(engine, MeanLengths(512, 128)).largest(
        lambda state: state.rate_rps <= full.rate_rps / 2
    )
    assert load.tpot_ms.p95 == pytest.approx(half.tpot_ms, rel=0.15)


def test_known_rows_move_the_rate_and_narrow_the_interval():
    rows = (EXAMPLES / "llm_serving.csv").read_text(encoding="utf-8")
    sizes = published_decoder("llama-2-7b")
    factors, reasons = known_factors(rows, sizes, EXAMPLES)
    assert set(factors) == {("H100-SXM5-80GB", 1)} and 0.8 < factors["H100-SXM5-80GB", 1] < 1.25
    assert len(reasons) == 5 and "Llama-4-Scout" in reasons[0]
    asked = request("H100-SXM5-80GB", sizes=sizes, limits=TokenLimits(max_tpot_ms=25.0))
    slow = replace(asked, known_factors={("H100-SXM5-80GB", 1): 1.2})
    plain, known = (size(each, most_simulated=8) for each in (asked, slow))
    before, after = (row_of(table, "H100-SXM5-80GB") for table in (plain, known))
    assert after.rate_rps < before.rate_rps and after.basis == "estimated, beside known rows"
    assert after.high_rps / after.low_rps < before.high_rps / before.low_rps
    assert row_of(known, "H100-SXM5-80GB", None, 8).basis == "estimated"
    with pytest.raises(
        InputFault, match="has no row with figures of this model in this precision: row 1 is of"
    ):
        known_factors(rows, SIZES, EXAMPLES, origin="rows.csv")
