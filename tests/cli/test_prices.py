"""`--prices`: a table of prices from a file prices the GPUs that have none."""

import io

import pytest

from tests.support.paths import EXAMPLES
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.values.plan.prices import GpuPrice, PriceTable

REQUEST = str(EXAMPLES / "plan_request.json")
TABLE = PriceTable("EUR", (GpuPrice("A100-80GB", 1.5, "2026-01-02", "our contract"),))


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_plan_is_priced_by_a_file_and_says_of_when(tmp_path, capsys, kind):
    path = tmp_path / f"prices.{kind}"
    if kind == "json":
        write_file(TABLE, path)
    else:
        path.write_text("gpu_type,per_hour,currency,date\nA100-80GB,1.5,EUR,2026-01-02\n")
    out, saved = tmp_path / "plan.json", tmp_path / "request.json"
    arguments = ["plan", REQUEST, "--prices", str(path), "--save-request", str(saved), "-o", str(out)]
    assert main(arguments) == 0
    errors = capsys.readouterr().err
    assert f"note: A100-80GB: 1.5 EUR an hour, price of 2026-01-02 from {path}, " in errors
    assert (
        "days old" in errors and f"priced by {path}, so this answers the request with these costs" in errors
    )
    plan, request = read_file(out)[1], read_file(saved)[1]
    assert plan.cost_per_hour == 1.5 * sum(gpu.used for gpu in plan.gpus)
    assert {(entry.cost, entry.cost_date) for entry in request.gpus} == {(1.5, "2026-01-02")}


def test_examples_and_types_without_a_price_fill_nothing_in(tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert main(["plan", REQUEST, "--prices", str(EXAMPLES / "prices.json"), "-o", str(out)]) == 0
    assert "has no price of A100-80GB, so none is filled in" in capsys.readouterr().err
    assert read_file(out)[1].cost_per_hour is None


@pytest.mark.parametrize("text", ["gpu_type,per_hour,currency,date\nX,1,EUR,2026-01-02\n", "{"])
def test_standard_input_has_its_name(monkeypatch, capsys, text):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["plan", REQUEST, "--prices", "-"]) == 2
    assert "torchsplit: standard input: " in capsys.readouterr().err


def test_a_table_that_is_none_ends_with_2(tmp_path, capsys):
    path = tmp_path / "prices.csv"
    path.write_text("gpu_type,per_hour,currency,date\nA100-80BG,1.5,EUR,2026-01-02\n")
    assert main(["plan", REQUEST, "--prices", str(path)]) == 2
    assert "Did you mean A100-80GB" in capsys.readouterr().err
    assert main(["plan", REQUEST, "--prices", REQUEST]) == 2
    assert main(["plan", REQUEST, "--prices", str(tmp_path / "none.csv")]) == 2
