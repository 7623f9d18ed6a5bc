"""`estimate-training` from outside, and the error of families that the fit did not see."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from benchmarks.training_estimates import left_out_errors, out_of_memory
from benchmarks.training_fit import ROWS, log_ratio, read_steps
from torchsplit_core.cli.command import main
from torchsplit_core.strategy.accuracy import StepComparison, family_errors
from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.estimated_table import ADDED_COLUMNS, REQUIRED_COLUMNS, estimate_table
from torchsplit_core.values import InputFault

STEPS = read_steps()


def some_rows(count: int = 3) -> tuple[list[str], list[dict[str, str]]]:
    with ROWS.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if row["set"] == "torchtitan"][:count]
        return list(reader.fieldnames or ()), rows


def text_of(columns: list[str], rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns, rows = some_rows()
    rows[1]["gpu"] = "abacus"
    (tmp_path / "rows.csv").write_text(text_of(columns, rows))
    assert main(("estimate-training", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out.csv"))) == 0
    made = list(csv.DictReader((tmp_path / "out.csv").open()))
    said = capsys.readouterr().err
    assert [list(row) for row in made] == [[*columns, *ADDED_COLUMNS]] * 3
    assert [{name: row[name] for name in columns} for row in made] == [
        {n: r[n] for n in columns} for r in rows
    ]
    assert [row["predicted_iter_s"] != "" for row in made] == [True, False, True]
    assert all(made[1][name] == "" for name in ADDED_COLUMNS)
    assert float(made[0]["low_s"]) < float(made[0]["predicted_iter_s"]) < float(made[0]["high_s"])
    assert "line 3: gpu is 'abacus'" in said
    assert "error median" in said and "peak memory: 2 rows" in said


def test_measured_columns_play_no_part() -> None:
    columns, rows = some_rows()
    without = estimate_table(
        text_of([name for name in columns if name not in ("iter_s", "peak_mem_gib")], rows)
    )
    assert without.estimates == estimate_table(text_of(columns, rows)).estimates
    assert without.errors == ()


def test_a_missing_column_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns, rows = some_rows()
    (tmp_path / "rows.csv").write_text(text_of([name for name in columns if name != "hidden"], rows))
    assert main(("estimate-training", str(tmp_path / "rows.csv"))) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "hidden" in said.err and said.out == ""


def test_every_needed_column_is_in_the_carried_table() -> None:
    assert set(REQUIRED_COLUMNS) <= set(some_rows()[0])


def test_known_rows_calibrate_their_framework_and_gpu() -> None:
    columns, rows = some_rows()
    plain = estimate_table(text_of(columns, rows)).estimates[0]
    known = [{**rows[0], "iter_s": str(float(rows[0]["iter_s"]) * 3)}]
    moved = estimate_table(text_of(columns, rows), text_of(columns, known)).estimates[0]
    assert plain is not None and moved is not None and moved.seconds > 1.5 * plain.seconds
    with pytest.raises(InputFault, match="iter_s"):
        estimate_table(text_of(columns, rows), text_of(columns, [{**rows[0], "iter_s": ""}]))


def test_known_rows_as_long_as_estimated_move_nothing_and_quicker_ones_down() -> None:
    columns, rows = some_rows()
    (plain, *_) = estimate_table(text_of(columns, rows)).estimates
    assert plain is not None

    def seconds(times: float) -> float:
        known = [{**rows[0], "iter_s": repr(times * plain.seconds)}]
        (moved, *_) = estimate_table(text_of(columns, rows), text_of(columns, known)).estimates
        assert moved is not None
        return moved.seconds

    assert seconds(1.0) == pytest.approx(plain.seconds)
    assert plain.seconds / 3 < seconds(1 / 3) < plain.seconds < seconds(3.0) < 3 * plain.seconds


def test_errors_by_hand() -> None:
    steps = [
        StepComparison("a", ("w",), 1.0, 1.1, 0.9, 1.3),
        StepComparison("a", ("w",), 2.0, 1.0, 0.8, 1.2),
        StepComparison("a", ("x",), 4.0, 4.0, 3.0, 5.0),
    ]
    (found,) = family_errors(steps)
    assert (found.rows, found.median, found.p90) == (3, pytest.approx(0.1), 0.5)
    assert found.bias == pytest.approx((0.1 - 0.5) / 3)
    assert found.coverage == pytest.approx(2 / 3)
    assert found.regrets == (1.0,)


@pytest.mark.repeated
@pytest.mark.slow
def test_families_left_out_stay_under_the_goals() -> None:
    errors = left_out_errors(STEPS, rounds=4)
    medians = sorted(one.median for one in errors)
    assert medians[len(medians) // 2] <= 0.07
    assert sorted(one.p90 for one in errors)[len(errors) // 2] <= 0.20
    assert 0.85 <= sum(one.coverage for one in errors) / len(errors) <= 1


def test_the_products_constants_are_those_of_the_fit() -> None:
    ratios = [abs(log_ratio(step, constants())) for step in STEPS if step.family != "vtrain-single"]
    assert sorted(ratios)[len(ratios) // 2] <= 0.04


def test_what_is_known_out_of_memory_is_not_called_fitting() -> None:
    assert not any(one.fits for one in out_of_memory(STEPS))
