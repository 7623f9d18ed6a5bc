"""What a page says of a model under load: whose host changes its speed, and whose requests have tokens."""

from dataclasses import replace

from app.plans.load import results, runs, token_table
from app.plans.load.runs import SimulationRuns
from torchsplit_core.pictures.html import load_html
from torchsplit_core.simulation import simulate
from torchsplit_core.values import (
    ConstantTokens,
    EngineServer,
    Pace,
    PoissonArrivals,
    Server,
    SimulatedModel,
    SimulationRequest,
    StepLine,
)

MODEL = SimulatedModel("bert", ("whole",), PoissonArrivals(50.0))
SERVER = Server("cpu0/1c@0", "bert", "whole", 4, {1: 10.0, 2: 16.0, 4: 28.0})
STEADY = SimulationRequest((MODEL,), (SERVER,), requests_per_model=1000)
LOOSE = replace(STEADY, servers=(replace(SERVER, pace=Pace(0.1, 2.0, 0.1)),))


def test_a_time_has_its_interval_below_it_and_the_verdict_takes_the_high_end():
    (load,) = simulate(LOOSE).models
    low, high = load.response_low_ms, load.response_high_ms
    assert low is not None and high is not None
    assert load.response_ms.p95 is not None and low.p95 is not None and high.p95 is not None
    shown = results.table_of([load], {}, {})
    assert f"{results.short(low.p95)} to {results.short(high.p95)}" in shown
    limit = (load.response_ms.p95 + high.p95) / 2
    close = results.verdict_badge([load], {"bert": limit}, 95)
    assert close.colour == "yellow" and f"up to {results.short(high.p95, 'ms')}" in close.text
    assert results.verdict_badge([load], {"bert": 1.01 * high.p95}, 95).colour == "green"


def test_without_a_pace_nothing_is_said_of_one():
    (load,) = simulate(STEADY).models
    assert " to " not in results.table_of([load], {}, {}).partition("</thead>")[2]
    assert load.response_ms.p95 is not None
    assert results.verdict_badge([load], {"bert": 1.5 * load.response_ms.p95}, 95).colour == "green"


def test_a_model_with_engines_has_a_table_of_its_tokens():
    tokens = ConstantTokens(20)
    chat = replace(MODEL, name="chat", prompt_tokens=tokens, output_tokens=tokens, max_ttft_ms=3.0)
    engine = EngineServer("gpu0/whole@0", "chat", "whole", 8, 512, 100, (StepLine(2.0),))
    request = SimulationRequest((MODEL, chat), (SERVER, engine), requests_per_model=500)
    shown = SimulationRuns(
        tuple(runs._cached_run.__wrapped__("", request, number) for number in (0, 1)), 2, ()
    )
    (run,) = token_table.token_runs(shown)
    load = run.load
    html = token_table.token_table_of(shown, {})
    assert "bert" not in html and load.ttft_ms is not None and load.ttft_ci95_ms is not None
    assert results.format_with_interval(load.ttft_ms.p95, load.ttft_ci95_ms.p95) in html
    assert results.format_attainment(load.goodput) in html and 0.5 < (load.goodput or 0) < 1
    (row,) = token_table.token_table(shown)
    assert (row["TTFT p99 ms"], row["ITL max ms"], row["preemptions"]) == (load.ttft_ms.p99, 2.0, 0)
    assert row["KV blocks, most"] == run.servers[0].kv_peak_blocks
    assert token_table.token_runs(SimulationRuns(shown.models[:1], 1, ())) == ()
    notebook = load_html(simulate(request))
    assert "TTFT p95, ms" in notebook and "TTFT" not in load_html(simulate(STEADY))
