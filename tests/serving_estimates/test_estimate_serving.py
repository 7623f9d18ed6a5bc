"""`estimate-serving` from outside: rows in their order, predictions without their own figures, reasons of bad rows."""

import csv
import io
import json
from pathlib import Path

import pytest

from torchsplit_core.cli.command import main
from torchsplit_core.serving_estimates.row import FIGURES
from torchsplit_core.serving_estimates.table import INTERVALS, estimate_serving
from torchsplit_core.values import InputFault

ROWS = (Path(__file__).parent / "data" / "rows.csv").read_text()
FIRST, SECOND = csv.DictReader(io.StringIO(ROWS))


def table_of(*rows):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def estimated(*rows, folder=None):
    return estimate_serving(table_of(*rows), folder=folder).records()


def test_the_command_writes_the_rows_in_their_order(tmp_path, capsys):
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_text(ROWS)
    assert main(["estimate-serving", str(source), "-o", str(out)]) == 0
    assert "2 rows: 2 predicted, 1 of them beside known rows" in capsys.readouterr().err
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["stage"] for row in rows] == ["0", "1"]
    for row in rows:
        assert all(float(row[name]) > 0 for name in (*FIGURES, *INTERVALS))
        for name in ("ttft", "itl", "e2e"):
            low, mean, high = (float(row[f"{name}_mean_{end}ms"]) for end in ("low_", "", "high_"))
            assert low < mean < high
        assert row["note"] == ""
    assert (rows[1]["given_ttft_mean_ms"], rows[1]["given_e2e_p99_ms"], rows[0]["given_e2e_p99_ms"]) == (
        "40",
        "250",
        "",
    )
    assert (rows[0]["given_note"], rows[1]["kv_blocks"], rows[1]["gpu_memory_utilization"]) == (
        "first",
        "65368",
        "0.8",
    )
    assert float(rows[0]["kv_blocks"]) == pytest.approx(65368, rel=0.02)
    assert [row["basis"] for row in rows] == ["estimated, beside 1 known row", "estimated"]


def test_what_the_command_wrote_is_read_again_without_its_predictions():
    once = estimate_serving(ROWS)
    again = estimate_serving(once.csv_text())
    assert set(once.header) <= set(again.header)
    for before, after in zip(once.records(), again.records(), strict=True):
        assert {name: str(after[name]) for name in before} == {
            name: str(cell) for name, cell in before.items()
        }


def test_own_figures_play_no_part_and_those_of_the_kind_do():
    alone = estimated(FIRST)[0]
    (_, before) = estimated(FIRST, SECOND)
    (_, changed) = estimated(FIRST, SECOND | {"e2e_mean_ms": "400"})
    assert [before[name] for name in FIGURES] == [changed[name] for name in FIGURES]
    slow = SECOND | {"e2e_mean_ms": "400", "ttft_mean_ms": "60", "itl_mean_ms": "17"}
    beside = estimated(FIRST, slow)[0]
    assert beside["e2e_mean_ms"] > 1.3 * alone["e2e_mean_ms"]
    assert estimated(FIRST, slow | {"gpu": "H200-141GB"})[0]["e2e_mean_ms"] == alone["e2e_mean_ms"]
    assert estimated(FIRST, slow | {"precision": "fp8"})[0]["e2e_mean_ms"] == alone["e2e_mean_ms"]


def test_a_log_takes_the_place_of_rates_and_lengths(tmp_path):
    (tmp_path / "log.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{2 * i},500,11\n" for i in range(20))
    )
    row = FIRST | {"requests": "log.csv", "rate_rps": "", "question_tokens": "", "output_tokens": ""}
    (log,) = estimated(row, folder=tmp_path)
    assert log["e2e_mean_ms"] == pytest.approx(log["ttft_mean_ms"] + 10 * log["itl_mean_ms"], rel=1e-3)
    assert log["e2e_p90_ms"] == pytest.approx(log["e2e_mean_ms"], rel=1e-3)
    (tmp_path / "log.csv").write_text("arrival_s,prompt_tokens,output_tokens\n3,5,5\n1,5,5\n")
    (fallen,) = estimated(row, folder=tmp_path)
    assert "line 3: arrival_s falls from 3 to 1" in fallen["note"] and fallen["e2e_mean_ms"] is None


def test_more_load_takes_longer_and_a_group_is_faster():
    slow, quick = estimated(FIRST | {"rate_rps": "20"}, FIRST | {"tp": "2"})
    (plain,) = estimated(FIRST)
    assert slow["itl_mean_ms"] > plain["itl_mean_ms"] > quick["itl_mean_ms"]
    (shared,) = estimated(FIRST | {"rate_rps": "20", "dp": "4"})
    assert shared["itl_mean_ms"] < slow["itl_mean_ms"]


def test_an_engine_runs_on_from_stage_to_stage():
    crowd = FIRST | {"max_num_seqs": "2", "rate_rps": "60", "duration_s": "5"}
    after = crowd | {"stage": "1", "rate_rps": "1"}
    (_, late), (fresh,) = estimated(crowd, after), estimated(after)
    assert late["ttft_mean_ms"] > 5 * fresh["ttft_mean_ms"]


def test_a_base_model_of_a_small_vocabulary_streams_fewer_pieces_than_tokens():
    base, chat = estimated(FIRST | {"model": "Llama-2-7b-hf"}, FIRST | {"model": "Llama-2-7b-chat-hf"})
    assert base["itl_mean_ms"] == pytest.approx(chat["itl_mean_ms"] / 0.78, rel=1e-4)
    assert base["e2e_mean_ms"] == chat["e2e_mean_ms"]


@pytest.mark.parametrize(("change", "said"), [
    ({"question_tokens": "0"}, "question_tokens: is 0, below the least value 1"),
    ({"output_tokens": "5000"}, "max_model_len: is 4096, and prompt and output have 5500 tokens together"),
    ({"kv_blocks": "10"}, "kv_blocks: 10 blocks of 16 tokens hold no request of 520 tokens"),
    ({"model": "bert-base"}, "unknown decoder 'bert-base'"),
    ({"config": "none.json"}, "none.json: cannot be read: no such file"),
    ({"tp": "3"}, "3 GPUs can not share 28 heads evenly"),
    ({"gpu": "A100-80GB", "precision": "fp8"}, "A100-80GB has no sourced peak for fp8"),
    ({"precision": "fp3"}, "precision: is 'fp3', not a known value"),
    ({"gpu": "L4-24GB", "model": "llama-3.1-70b"}, "GiB of each GPU"),
    ({"gpu": "H100"}, "unknown GPU type 'H100'"),
    ({"rate_rps": "0"}, "rate_rps: is 0, not above 0"),
    ({"rate_rps": "1e9"}, "requests are more than"),
    ({"gpu_memory_utilization": "1.5"}, "gpu_memory_utilization: is 1.5, more than the whole memory"),
    ({"requests": "none.csv"}, "none.csv: cannot be read"),
    ({"e2e_mean_ms": "fast"}, "e2e_mean_ms: is 'fast'"),
])  # fmt: skip
def test_a_bad_row_says_why_and_the_others_are_predicted(change, said):
    plain = FIRST | {"config": "", "requests": ""}
    bad, good = estimated(plain | change, plain)
    assert said in bad["note"] and bad["e2e_mean_ms"] is None and bad["basis"] is None
    assert good["note"] == "" and good["e2e_mean_ms"] > 0


def test_configs_that_are_no_decoders_say_why(tmp_path):
    for kind, said in (
        ("bert", "is an encoder"),
        ("deepseek_v3", "latent attention"),
        ("odd", "is none of llama"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        (row,) = estimated(FIRST | {"config": "config.json"}, folder=tmp_path)
        assert said in row["note"]


@pytest.mark.parametrize(("text", "said"), [
    ("", "is empty"),
    ("a,b\n1,2\n", "header: has no model, gpu, rate_rps"),
    (ROWS.splitlines()[0], "has no row below its header"),
    ("\n".join([ROWS.splitlines()[0], *[ROWS.splitlines()[1]] * 2001]), "has 2,001 rows, more than 2,000"),
])  # fmt: skip
def test_a_text_that_is_no_such_table_is_refused(text, said):
    with pytest.raises(InputFault, match=said):
        estimate_serving(text)


def test_the_command_refuses_a_file_that_is_not_there(capsys):
    assert main(["estimate-serving", "none.csv"]) == 2
    assert "none.csv: cannot be read: no such file" in capsys.readouterr().err
