"""The command trace-report: its text, its JSON, standard input, and files that are no traces."""

import io
import json

import pytest

from torchsplit_core.cli.command import main

TRACE = "5b8efff798038103d269b633813fc60c"


def line(*spans):
    """One request; each span as (id, parent, name, start ms, end ms)."""
    written = [
        {
            "traceId": TRACE, "spanId": f"{number:016x}", "parentSpanId": f"{parent:016x}" if parent else "",
            "name": name, "startTimeUnixNano": start * 1_000_000, "endTimeUnixNano": end * 1_000_000,
            "attributes": [{"key": "torchsplit.model", "value": {"stringValue": f"m{number}"}}],
        }
        for number, parent, name, start, end in spans
    ]  # fmt: skip
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": written}]}]}) + "\n"


SPANS = line((1, 0, "job", 0, 100), (2, 1, "trace", 10, 40), (3, 1, "profile", 40, 90))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "spans.jsonl"
    path.write_text(SPANS)
    return path


def test_the_tree_and_its_tables(file, capsys):
    assert main(["trace-report", str(file)]) == 0
    text = capsys.readouterr().out
    rows = [" ".join(row.split()) for row in text.splitlines()]
    assert rows[0] == "3 spans in 100.0 ms, 0 failed"
    # start, total, self, critical
    assert "job m1 0.0 100.0 20.0 20.0" in rows
    assert "profile m3 40.0 50.0 50.0 50.0" in rows
    assert text.index("\n  trace m2") < text.index("\n  profile m3") < text.index("critical path")
    assert rows[-1] == "trace 1 0 30.0 30.0 30.0"


def test_json_of_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SPANS.encode())))
    assert main(["trace-report", "-", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["wall_ms"] == 100 and report["notes"] == []
    assert [span["self_ms"] for span in report["spans"]] == [20, 30, 50]
    assert report["slowest"][0] == f"{3:016x}"
    assert report["critical_path"] == [f"{number:016x}" for number in (1, 2, 3)]


def test_a_report_that_cannot_be_written_is_a_message(file, capsys):
    assert main(["trace-report", str(file), "-o", "/proc/report.txt"]) == 2
    assert "/proc/report.txt: cannot be written: " in capsys.readouterr().err


def test_a_limit_of_lines_and_a_file_for_the_report(file, tmp_path):
    out = tmp_path / "report.txt"
    assert main(["trace-report", str(file), "--most", "1", "-o", str(out)]) == 0
    assert "… 2 more (--most)" in out.read_text()


def test_json_with_a_file_goes_to_both(file, tmp_path, capsys):
    out = tmp_path / "report.json"
    assert main(["trace-report", str(file), "--json", "-o", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text())


def test_names_of_a_file_do_not_command_the_terminal(tmp_path, capsys):
    path = tmp_path / "spans.jsonl"
    path.write_text(line((1, 0, "a\x1b[2J\nb" + "x" * 500, 0, 1)))
    assert main(["trace-report", str(path)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text and max(map(len, text.splitlines())) < 130


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "has no span"),
        ("{}\n", "line 1"),
        (line((1, 0, "late", 5, 4)), "the span 'late' that ends before it starts"),
    ],
)
def test_a_file_that_is_no_trace(tmp_path, capsys, content, told):
    path = tmp_path / "spans.jsonl"
    path.write_text(content)
    assert main(["trace-report", str(path)]) == 2
    text = capsys.readouterr().err
    assert told in text and "Traceback" not in text


def test_options_and_paths_at_fault(file, tmp_path, capsys):
    assert main(["trace-report", str(file), "--most", "0"]) == 2
    assert "--most" in capsys.readouterr().err
    assert main(["trace-report", str(tmp_path / "absent")]) == 2
    assert "cannot be read" in capsys.readouterr().err
