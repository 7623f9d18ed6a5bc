"""LLM placements: the tabs Size and Measured as a user drives them."""

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.measured_serving import ServingPoint, measured_serving
from app.charts.token_times import EngineLine, token_times
from app.placements import measured
from app.placements.sizing import inputs
from benchmarks.llm_serving_estimates import SERVING
from tests.support.app.page import field, metrics, press, run, said
from tests.support.paths import ROOT
from torchsplit_core.workspace.store import Workspace

TYPES = ["L40S-48GB", "A100-80GB"]
ROWS = (ROOT / "examples" / "llm_serving.csv").read_text(encoding="utf-8")


def opened(page, workspace: Workspace, **changed: object) -> AppTest:
    """The tab Size after its button, with few types."""
    first = page("placements", workspace)
    first.session_state[f"size-types {workspace.id}"] = TYPES
    for name, value in changed.items():
        first.session_state[f"size-{name} {workspace.id}"] = value
    return press(first, "Size")


def sizes(shown: AppTest):
    return next(table.value for table in shown.dataframe if "engine on" in table.value)


def test_an_empty_tab_says_what_it_will_show(page, workspace):
    first = page("placements", workspace)
    assert "press Size: you will see" in said(first) and not first.dataframe
    assert workspace.setting(inputs.SETTING) is None


def test_pressing_size_shows_the_least_that_serves_and_keeps_the_inputs(page, workspace):
    shown = opened(page, workspace)
    cards = metrics(shown)
    assert cards["Fewest GPUs"].startswith("2 × ") and cards["TPOT"].endswith(" ms")
    table = sizes(shown)
    assert set(table["engine on"]) > {"L40S-48GB", "A100-80GB"} and list(table["GPUs"]) == sorted(
        table["GPUs"]
    )
    assert (table["engines"] * table["req/s of one"] > 9.9).all() and (table["TTFT, ms"] <= 500).all()
    assert "Too little memory: A100-80GB 1g.10gb" in said(shown)
    assert [chart.proto.id for chart in shown.get("plotly_chart")], "TTFT and TPOT over the rate"
    again = page("placements", workspace)
    assert list(sizes(again)["engine on"]) == list(table["engine on"]), "another session begins with the same"
    assert "press Size" not in said(again)


@pytest.mark.repeated
def test_a_use_fills_in_lengths_and_limits_and_prices_order_the_table(page, workspace):
    shown = opened(page, workspace)
    shown.button_group(key=f"size-use {workspace.id}").set_value("Code")
    run(shown)
    assert field(shown, "number_input", "Prompt, tokens").value == 2048
    assert field(shown, "number_input", "Max TPOT, ms").value == 30.0
    for name, price in (("L40S-48GB", 9.0), ("A100-80GB", 1.0)):
        shown.number_input(key=f"size-price {name} {workspace.id}").set_value(price)
    run(shown)
    assert metrics(shown)["Least price"].endswith("A100-80GB")
    assert "price an hour" in sizes(shown) and workspace.setting(inputs.SETTING)["prices"]["L40S-48GB"] == 9.0


@pytest.mark.repeated
def test_no_limits_and_limits_that_nothing_keeps(page, workspace):
    shown = opened(page, workspace)
    field(shown, "number_input", "Max TTFT, ms").set_value(1.0)
    run(shown)
    (fault,) = shown.error
    text = fault.value.replace("\\", "")
    assert "nothing serves them within a TTFT of 1 ms" in text and "Nearest: a TTFT of" in text
    for label in ("Max TTFT, ms", "Max TPOT, ms"):
        field(shown, "number_input", label).set_value(None)
    run(shown)
    assert not shown.error and "goodput, %" not in sizes(shown)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"types": []}, "names no GPU type"),
        ({"prompt": 200_000}, "200000 + 256 tokens are more than the 131072 of llama-3.1-8b's context"),
        ({"model": inputs.CUSTOM_CONFIG}, "config.json: is missing"),
        ({"precision": "fp8", "types": ["A100-80GB"]}, "A100-80GB has no sourced peak for fp8"),
        ({"cached": 1024}, "--cached: is 1024, above the greatest value 1023"),
    ],
)
def test_bad_input_is_one_red_line(page, workspace, changed, message):
    shown = opened(page, workspace, **changed)
    (fault,) = shown.error
    assert message in fault.value.replace("\\", "") and not shown.exception


def test_measured_rows_stand_beside_predictions(page, workspace):
    empty = page("placements", workspace, tab="measured")
    assert "Choose a table of measured serving" in said(empty)
    few = "\n".join(ROWS.splitlines()[:1] + ROWS.splitlines()[5:7]) + "\n"
    workspace.set_setting(measured.SETTING, ["mine.csv", few])
    shown = page("placements", workspace, tab="measured")
    assert "mine.csv: 2 rows: 2 predicted, 2 of them beside known rows" in said(shown)
    cards = metrics(shown)
    assert set(cards) == {"TTFT", "Time per token", "Whole response"} and all(
        text.endswith("%") for text in cards.values()
    )
    table = next(element.value for element in shown.dataframe if "TTFT measured, ms" in element.value)
    assert list(table["TTFT measured, ms"]) == [25.037, 29.454] and (table["TTFT, ms"] > 0).all()
    assert len(shown.get("plotly_chart")) == 3


def test_the_example_is_the_benchmark_s_and_is_said_to_be_what_was_fitted(page, workspace):
    assert SERVING.read_text(encoding="utf-8") == ROWS
    shown = press(page("placements", workspace, tab="measured"), "Show the example")
    assert "8 predicted" in said(shown) and "fitted on these rows" in said(shown)


def test_a_table_without_its_columns_is_one_red_line(page, workspace):
    workspace.set_setting(measured.SETTING, ["bad.csv", "a,b\n1,2\n"])
    shown = page("placements", workspace, tab="measured")
    (fault,) = shown.error
    assert "bad.csv: header: has no model" in fault.value.replace("\\", "")


def test_charts_draw_limits_intervals_and_names_as_text():
    line = EngineLine("<b>", "#3f66cc", (1.0, 2.0), (10.0, 20.0), 2.0)
    figure = token_times([line], "TTFT p95, ms", 15.0, dark=False)
    assert figure.data[0].name == "&lt;b&gt;" and list(figure.data[1].y) == [15.0, 15.0]
    point = ServingPoint("<i>", 10.0, 12.0, 9.0, 15.0, calibrated=False)
    figure = measured_serving([point], "TTFT", dark=True)
    bars = figure.data[1].error_y
    assert (bars.array[0], bars.arrayminus[0]) == (3.0, 3.0) and figure.data[1].customdata[0][
        0
    ] == "&lt;i&gt;"
