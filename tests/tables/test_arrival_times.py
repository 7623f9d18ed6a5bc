"""Times of arrival from a table: seconds, timestamps, one model or several, and what is none."""

from pathlib import Path

import pytest

from tests.support.pipes import pipe_with
from torchsplit_core.tables import arrival_times, sheet
from torchsplit_core.tables.arrival_times import read_arrival_times
from torchsplit_core.values import InputFault


def read(folder: Path, text: str) -> dict[str | None, tuple[float, ...]]:
    path = folder / "trace.csv"
    path.write_text(text)
    return read_arrival_times(path)


@pytest.mark.parametrize("text", [
    "time_s\n0.5\n0.75\n0.75\n",
    "0.5\n0.75\n0.75\n",
    "id,Time\n7,0.5\n8,0.75\n9,7.5e-1\n",
    "\ufeffarrival_time,tokens\r\n0.5,3\r\n\r\n0.75,4\r\n0.75,4\r\n",
])  # fmt: skip
def test_seconds_stand_as_they_are(tmp_path, text):
    assert read(tmp_path, text) == {None: (0.5, 0.75, 0.75)}


def test_a_time_of_a_vast_exponent_is_read_at_once(tmp_path):
    assert read(tmp_path, "time_s\n1e-777777777777777\n0e999999999\n") == {None: (0.0, 0.0)}


def test_timestamps_of_a_public_trace_count_from_the_first(tmp_path):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319569,110,27\n"
        "2023-11-17 18:17:03.9799600,110,27\n"
    )
    assert read(tmp_path, text) == {None: (0.0, 0.0519969, 86400.0)}
    text = "timestamp\n2026-01-01T00:00:00Z\n2026-01-01T02:00:00.5+01:00\n"
    assert read(tmp_path, text) == {None: (0.0, 3600.5)}


def test_a_column_of_models_divides_the_rows(tmp_path):
    text = "model,time_s\nbert,0\nocr,0.1\nbert,0.2\n"
    assert read(tmp_path, text) == {"bert": (0.0, 0.2), "ocr": (0.1,)}


@pytest.mark.parametrize(("text", "match"), [
    ("", "trace.csv: is empty"),
    ("time_s\n", "has a header but no arrivals"),
    ("when,what\n1,2\n", "has no column of times: its header is 'when, what'"),
    ("time_s\n0.5\nsoon\n", "row 3: 'soon' is neither seconds nor a timestamp"),
    ("time_s,x\n0.5,1\n,2\n", "row 3: ''"),
    ("time_s\nnan\n", "row 2: 'nan'"),
    ("timestamp\n2023-13-16 18:17:03\n", "row 2: '2023-13-16 18:17:03' is no date of the calendar"),
    ("time_s\n1\n1\n0.5\n", "row 4: the time 0.5 is before that of the row above"),
    ("model,time_s\na,3\nb,1\na,2\n", "row 4: the time 2 is before that of the row above"),
    ("time_s,time_s\n1,2\n", "header: names 'time_s' twice"),
    ("model,model,t\na,b,2\n", "header: names 'model' twice"),
    ("time_s\n-1\n2\n", "row 2: the time -1 is below 0"),
])  # fmt: skip
def test_what_is_no_time_is_one_message(tmp_path, text, match):
    with pytest.raises(InputFault, match=match):
        read(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputFault, match=r"none\.csv: cannot be read: no such file\."):
        read_arrival_times(tmp_path / "none.csv")


def test_of_what_has_no_size_no_more_is_read_than_the_largest_table(monkeypatch):
    for module in (arrival_times, sheet):
        monkeypatch.setattr(module, "LARGEST_TABLE_BYTES", 1000)
    with pipe_with(b"1\n" * 1000) as path, pytest.raises(InputFault, match="has 1,001 bytes"):
        read_arrival_times(path)
