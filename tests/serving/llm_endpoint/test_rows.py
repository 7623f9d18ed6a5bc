"""Figures of a stage, exact from given times; the row, the requests and the table that they make."""

import csv
import io

import pytest

from torchsplit_core.serving.llm_endpoint.client import StreamedAnswer
from torchsplit_core.serving.llm_endpoint.open_loop import LoadStage, StageAnswers
from torchsplit_core.serving.llm_endpoint.rows import (
    COLUMNS,
    REQUEST_COLUMNS,
    latency_figures,
    request_rows,
    serving_row,
    stage_figures,
    table_text,
)
from torchsplit_core.tables.write_csv import rows_csv


def answer(due, first, gap, tokens, *, events=None, counted=True, prompt=100, problem="", late=0.0):
    events = tokens if events is None else events
    times = tuple(due + first + gap * number for number in range(events))
    output = tokens if counted else None
    return StreamedAnswer(due, due + late, times, prompt, output, 200, problem)


ANSWERS = (
    answer(10.0, 0.020, 0.005, 11),
    answer(10.5, 0.040, 0.010, 21, late=0.003),
    # Two tokens an event, and one token alone, which has no gap.
    answer(11.0, 0.060, 0.008, 9, events=5),
    answer(11.5, 0.080, 0.0, 1),
    answer(12.0, 9.0, 1.0, 5, problem="answered 500: no memory"),
)
STAGE = StageAnswers(LoadStage(2.0, 2.5, (0.0, 0.5, 1.0, 1.5, 2.0)), 10.0, ANSWERS)


def test_figures_are_those_of_the_answers_that_came():
    figures = stage_figures(STAGE)
    assert (figures.sent, figures.answered) == (5, 4)
    assert dict(figures.problems) == {"answered 500: no memory": 1}
    ttft = figures.ttft_ms
    assert [ttft.mean, ttft.p50, ttft.p90, ttft.p99, ttft.max] == pytest.approx([50, 40, 80, 80, 80])
    # Gaps: 10 of 5 ms, 20 of 10 ms, 8 that take 4 times 8 ms.
    assert figures.itl_ms == pytest.approx((50 + 200 + 32) / 38)
    assert [figures.tpot_ms.mean, figures.tpot_ms.p90] == pytest.approx([(5 + 10 + 4) / 3, 10])
    whole = figures.e2e_ms
    assert [whole.mean, whole.p90] == pytest.approx([(70 + 240 + 92 + 80) / 4, 240])
    assert (figures.prompt_tokens, figures.output_tokens) == (100, (11 + 21 + 9 + 1) / 4)
    assert figures.output_tokens_per_s == pytest.approx(42 / 1.58)
    assert figures.late_ms == pytest.approx(3)


def test_events_count_where_nobody_counts_tokens():
    stage = StageAnswers(
        STAGE.stage, 10.0, (answer(10.0, 0.1, 0.01, 9, events=3, counted=False, prompt=None),)
    )
    figures = stage_figures(stage)
    assert (figures.prompt_tokens, figures.output_tokens) == (None, 3)
    assert figures.itl_ms == pytest.approx(10)


def test_percentiles_are_the_nearest_rank():
    times = latency_figures([value / 1e3 for value in range(100, 0, -1)])
    assert (times.p50, times.p90, times.p99, times.max) == pytest.approx((50, 90, 99, 100))
    single = latency_figures([0.5])
    assert (single.mean, single.p50, single.p99) == (500, 500, 500)


def test_a_row_says_what_was_measured_and_where():
    settings = {"model": "m", "gpu": "L4-24GB", "source": "http://a:80/v1", "tp": "2"}
    row = serving_row(3, STAGE, stage_figures(STAGE), settings, 99, 12, ["a note"])
    assert set(row) == set(COLUMNS)
    assert {name: row[name] for name in ("model", "gpu", "tp", "dp", "source", "basis", "stage", "multi_turn")} == {
        "model": "m", "gpu": "L4-24GB", "tp": "2", "dp": "1", "source": "http://a:80/v1", "basis": "measured",
        "stage": "3", "multi_turn": "no",
    }  # fmt: skip
    assert (row["rate_rps"], row["duration_s"], row["question_tokens"], row["output_tokens"]) == (
        "2",
        "2.5",
        "100",
        "10",
    )
    names = (
        "ttft_mean_ms",
        "ttft_p90_ms",
        "ttft_p99_ms",
        "itl_mean_ms",
        "e2e_mean_ms",
        "e2e_p90_ms",
        "e2e_p99_ms",
    )
    assert [row[name] for name in names] == ["50", "80", "80", "7.421", "120.5", "240", "240"]
    assert row["note"] == "5 requests sent; a note; 1 failed and are in no figure: 1: answered 500: no memory"


def test_without_an_answer_a_row_has_no_figure():
    failed = StageAnswers(STAGE.stage, 10.0, ANSWERS[-1:])
    assert stage_figures(failed) is None
    row = serving_row(0, failed, None, {}, 99, 12, [])
    assert [row["ttft_mean_ms"], row["itl_mean_ms"], row["question_tokens"], row["output_tokens"]] == [
        "",
        "",
        "99",
        "12",
    ]
    assert table_text([STAGE, failed], [stage_figures(STAGE), None]).splitlines()[-1].split()[:4] == [
        "2",
        "1",
        "1",
        "n/a",
    ]


def test_requests_can_be_replayed():
    rows = list(csv.DictReader(io.StringIO(rows_csv(REQUEST_COLUMNS, request_rows(STAGE, 100)))))
    assert len(rows) == 4
    assert rows[1] == {
        "arrival_s": "0.500000", "prompt_tokens": "100", "output_tokens": "21", "first_token_s": "0.540000",
        "last_token_s": "0.740000",
    }  # fmt: skip


def test_the_columns_are_those_of_measured_serving():
    text = rows_csv(COLUMNS, [serving_row(0, STAGE, stage_figures(STAGE), {"engine": "=1+1"}, 1, 1, [])])
    head = text.splitlines()[0]
    # What an endpoint says of itself runs in no spreadsheet.
    assert ",'=1+1," in text
    assert head.startswith(
        "experiment,model,gpu,tp,dp,precision,max_num_seqs,max_num_batched_tokens,max_model_len,"
    )
    assert head.endswith("e2e_p99_ms,engine,source,note,config,requests,basis")
