"""How a run exchanges gradients, on its page, beside another run, and in the form of a new one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from app.runs.communication import KINDS, candidate_rows, transfer_rows
from app.runs.panels import PARTS
from tests.app.runs.test_comparison import by_name
from tests.app.runs.test_rank_times import chart
from tests.app.runs.test_runs_page import kept, opened, table
from tests.support.app.page import field, press, said
from tests.support.training.folders import left_folder
from torchsplit_core.jobs.job_kinds import TRAIN, from_stored, to_stored
from torchsplit_core.training.communication.choice import ExchangeCandidate, TransferTimes
from torchsplit_core.training.communication.record import ExchangeKey, ExchangeRecord, save_exchange
from torchsplit_core.training.monitor import RunReader
from torchsplit_core.values.strategy.communication import CommunicationRequest

RECORD = ExchangeRecord(
    ExchangeKey(CommunicationRequest(), 2, 1, "gloo", 4_000_000),
    "all_reduce",
    1.0,
    "a plain all-reduce in buckets of 1 MiB: a step of 0.2 s predicted, 0.3 s by DDP's defaults",
    {"all_reduce": TransferTimes((4096, 65536), (0.001, 0.004), (0.0005, 0.001))},
    (
        *(ExchangeCandidate("all_reduce", cap, 4, 0.2, 0.05, 4_000_000) for cap in (1.0, 2.0, 0.5, 4.0, 8.0)),
        *(
            ExchangeCandidate("all_reduce", cap, 4, 0.25, 0.05, 4_000_000)
            for cap in (16.0, 25.0, 50.0, 100.0)
        ),
        ExchangeCandidate("all_reduce", None, 2, 0.3, 0.1, 4_000_000),
    ),
    before_s=0.2,
    after_s=0.1,
)
SECONDS = {"all_reduce_exposed": 0.03, "all_reduce_overlapped": 0.05, "agreement": 0.01}


def with_kinds(run: Path) -> None:
    for rank in range(2):
        file = run / "watch" / f"rank-{rank}.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "communication_s": SECONDS}))


def test_the_rows_have_the_fastest_the_runs_own_and_the_default() -> None:
    rows = candidate_rows(RECORD)
    assert len(rows) == 9 and [row["role"] for row in rows] == ["the run's", *[""] * 7, "DDP's defaults"]
    assert (rows[0]["exchange"], rows[0]["bucket size"]) == ("all-reduce", "1 MiB")
    assert rows[-1]["bucket size"] == "DDP's default"
    reverted = candidate_rows(replace(RECORD, bucket_mib=None, reverted=True))
    assert reverted[-1]["role"] == "the run's"
    assert [row["gradients"] for row in transfer_rows(RECORD)] == ["4.1\u202fkB", "65.5\u202fkB"]


def test_the_page_says_what_was_chosen_and_what_it_brought(workspace) -> None:
    run = kept(workspace, "diamond-1")
    assert "Communication" not in [header.value for header in opened(workspace, "diamond-1").header]
    with_kinds(run)
    save_exchange(run, RECORD)
    test = opened(workspace, "diamond-1")
    assert "Communication" in [header.value for header in test.header]
    text = said(test)
    # 0.03 s of 0.05 s forward and 0.1 s backward: the same seconds as in the charts, which draw them in one colour.
    assert list(table(test, "communication")["communication"]) == ["20\u202f%"] * 2
    assert "over the same steps as in the charts below" in text
    colours = [
        next(bar["marker"]["color"] for bar in chart(test, part) if bar["name"] == "loss all-gather")
        for part in ("forward", "all-reduce, exposed")
    ]
    assert colours[0] == colours[1]
    assert not {colour for _, colour in KINDS.values()} & {
        colour for part, (_, colour) in PARTS.items() if part != "agreement"
    }
    assert "0.3 s by DDP" in text and "2 times as fast" in text and "went back" not in text
    assert "the run's" in list(table(test, "predicted step")["role"])
    assert list(table(test, "took")["took"]) == ["0.001\u202fs", "0.004\u202fs"]
    save_exchange(run, replace(RECORD, hook="all_reduce", bucket_mib=None, after_s=0.3, reverted=True))
    assert "went back" in said(opened(workspace, "diamond-1"))
    (run / "watch" / "communication.json").write_text("{")
    assert not opened(workspace, "diamond-1").exception


def test_two_runs_side_by_side_tell_their_exchanges_where_either_knows_it(tmp_path: Path) -> None:
    first, second = left_folder(tmp_path / "a").path, left_folder(tmp_path / "b").path
    assert "gradient reduction" not in by_name(RunReader(first).view(), RunReader(second).view())
    save_exchange(first, RECORD)
    with_kinds(second)
    rows = by_name(RunReader(first).view(), RunReader(second).view())
    assert rows["gradient reduction"] == ("a plain all-reduce in buckets of 1 MiB", "n/a", "n/a")
    assert rows["s/step waiting for the gradient reduction"] == ("n/a", "0.03", "n/a")


def test_the_exchange_of_the_form_reaches_the_run_and_its_stored_job(page, workspace, started) -> None:
    test = page("runs", workspace)
    field(test, "selectbox", "Gradient reduction").select("Chosen, may round to bf16").run()
    press(test, "Start the run")
    ((_, parameters),) = started
    assert parameters.options.communication == CommunicationRequest(("bf16",))
    assert from_stored(TRAIN, to_stored(TRAIN, parameters)) == parameters
