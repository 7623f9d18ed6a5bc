"""`measure --endpoint` on the command line: its rows, its table, and what it says of options."""

import asyncio
import csv
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.serving.stub_endpoint import GOOD, stub_endpoint
from torchsplit_core import cli

FEW = ["--rate", "200", "--prompt", "12", "--output", "3", "--requests", "4"]


@pytest.fixture(scope="module")
def url():
    with stub_endpoint() as running:
        yield running.url


def test_rows_requests_and_table(url, tmp_path, capsys):
    out, requests = tmp_path / "rows.csv", tmp_path / "requests.csv"
    given = [
        "--gpu",
        "L4-24GB",
        "--tp",
        "2",
        "--precision",
        "fp8",
        "--kv-blocks",
        "900",
        "--gpu-memory-utilization",
        "0.85",
    ]
    command = [
        "measure",
        "--endpoint",
        url,
        "--model",
        GOOD,
        *FEW,
        "--rate",
        "100,200",
        "--arrivals",
        "deterministic",
    ]
    assert cli.main([*command, *given, "-o", str(out), "--requests-out", str(requests)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "measured at " in printed.err and "TTFT mean" in printed.err
    rows = list(csv.DictReader(out.open()))
    assert [(row["stage"], row["rate_rps"], row["duration_s"]) for row in rows] == [
        ("0", "100", "0.04"),
        ("1", "200", "0.02"),
    ]
    for row in rows:
        assert (row["gpu"], row["tp"], row["precision"], row["kv_blocks"]) == ("L4-24GB", "2", "fp8", "900")
        assert (row["gpu_memory_utilization"], row["basis"]) == ("0.85", "measured")
        assert row["experiment"].startswith(f"{GOOD} 20") and float(row["ttft_mean_ms"]) > 0
    assert rows[0]["experiment"] == rows[1]["experiment"]
    assert [row["requests"] for row in rows] == [str(tmp_path / f"requests-{stage}.csv") for stage in (0, 1)]
    sent = [row for stage in (0, 1) for row in csv.DictReader((tmp_path / f"requests-{stage}.csv").open())]
    assert [float(row["arrival_s"]) for row in sent] == pytest.approx(
        [0.01, 0.02, 0.03, 0.04, 0.005, 0.01, 0.015, 0.02]
    )
    assert {(row["prompt_tokens"], row["output_tokens"]) for row in sent} == {("12", "3")}


def test_a_loop_that_runs_already_is_no_hindrance(url, capsys):
    async def in_a_notebook() -> int:
        return cli.main(["measure", "--endpoint", url, "--model", GOOD, *FEW])

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, in_a_notebook()).result() == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_without_a_file_rows_go_to_standard_output(url, tmp_path, capsys):
    command = ["measure", "--endpoint", url, "--model", GOOD, *FEW, "--requests-out", str(tmp_path / "r.csv")]
    assert cli.main(command) == 0
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 5
    assert capsys.readouterr().out.startswith("experiment,model,gpu,")
    assert cli.main([*command, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["model"] == GOOD and row["output_tokens"] == "3"


@pytest.mark.parametrize(("options", "words"), [
    (["--rate", "0"], "--rate: is 0.0, not above 0"), (["--rate", "2,x"], "--rate: 'x' is no number"),
    (["--prompt", "0"], "--prompt: is 0, below"), (["--output", "0"], "--output: is 0, below"),
    (["--output", "x.json"], "--output: is 'x.json', not a whole number of tokens"),
    (["--requests", "0"], "--requests: is 0, below"), (["--timeout-s", "0"], "--timeout-s: is 0.0, not above"),
    (["--duration-s", "1e6"], "--duration-s: is 1e+06, above"), (["--seed", "-1"], "--seed: is -1"),
    (["--arrivals", "often"], "--arrivals: is 'often'"), (["--tp", "0"], "--tp: is 0, below"),
    (["--gpu-memory-utilization", "90"], "--gpu-memory-utilization: is 90, outside"),
    (["--config", "none.json"], "--config: there is no file 'none.json'"), (["--gpu", "a\nb"], "--gpu: is 'a\\nb'"),
    (["--key-env", "NO_SUCH_KEY"], "--key-env: the environment variable 'NO_SUCH_KEY' is not set"),
    (["--request", "r.json"], "--endpoint: is given, and the plan r.json too"),
    (["--endpoint", "nowhere"], "--endpoint: 'nowhere' is no http or https URL"),
    (["--arrivals", "poisson", "--arrivals", "gamma:2"], "--arrivals: is given 2 times"),
])  # fmt: skip
def test_options_that_make_no_sense(url, options, words, capsys):
    assert cli.main(["measure", "--endpoint", url, "--model", GOOD, *FEW, *options]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and printed.out == "" and printed.err.count("\n") == 1


@pytest.mark.parametrize("left_out", ["--model", "--rate", "--prompt", "--output"])
def test_what_is_missing(url, left_out, capsys):
    command = ["measure", "--endpoint", url, "--model", GOOD, *FEW]
    at = command.index(left_out)
    assert cli.main(command[:at] + command[at + 2 :]) == 2
    assert f"{left_out}: is missing, and --endpoint needs it" in capsys.readouterr().err


def test_a_plan_or_an_endpoint(capsys, tmp_path):
    assert cli.main(["measure"]) == 2
    assert "PLAN: is missing" in capsys.readouterr().err
    assert cli.main(["measure", "plan.json"]) == 2
    assert "--request: is missing" in capsys.readouterr().err
    assert cli.main(["measure", "plan.json", "--request", "r.json", "--rate", "3", "--chat"]) == 2
    assert "--rate and --chat go with --endpoint, and the plan plan.json is given" in capsys.readouterr().err
    # Without an endpoint --output is the file, as of every command.
    assert (
        cli.main(["measure", "plan.json", "--request", "r.json", "--output", str(tmp_path / "no" / "x")]) == 2
    )
    assert "--output: the folder" in capsys.readouterr().err
