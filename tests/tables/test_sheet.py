"""Delimited text of any origin: delimiters, marks, quotes, blank lines, limits, and what is no table."""

import pytest

from torchsplit_core.tables import LARGEST_TABLE_BYTES, LARGEST_TABLE_ROWS, decode, read_sheet
from torchsplit_core.values import InputFault


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_delimiters_and_line_ends(delimiter, end):
    lines = [["model", "batch_size", "rps"], ["a", "1", "2"], ["b", "3", "4"]]
    sheet = read_sheet(end.join(delimiter.join(line) for line in lines) + end)
    assert sheet.header == ("model", "batch_size", "rps")
    assert [record.cells for record in sheet.records] == [("a", "1", "2"), ("b", "3", "4")]
    assert [record.line for record in sheet.records] == [2, 3]
    assert sheet.decimal_comma == (delimiter != ",")


def test_a_mark_blank_lines_and_blanks_around_cells_are_no_content():
    sheet = read_sheet("\ufeff\n model , bs \n\n , \n a , 1 \n\n")
    assert sheet.header == ("model", "bs")
    assert [(record.line, record.cells) for record in sheet.records] == [(5, ("a", "1"))]


def test_quoted_cells_hold_delimiters_and_line_breaks_and_lines_count_on():
    sheet = read_sheet('model,note\na,"one, two\nthree ""quoted"""\nb,four\n')
    assert sheet.records[0].cells == ("a", 'one, two\nthree "quoted"')
    assert [record.line for record in sheet.records] == [2, 4]


def test_a_quoted_header_does_not_sway_the_delimiter():
    assert read_sheet('model;"throughput, in requests, per second"\na;1\n').header == (
        "model",
        "throughput, in requests, per second",
    )


@pytest.mark.parametrize(("top", "delimiter"), [("sep=;\n", ";"), ("sep=\t\n", "\t"), ("sep=,\r\n", ",")])
def test_a_spreadsheet_may_name_its_delimiter(top, delimiter):
    sheet = read_sheet(f"{top}model{delimiter}bs\na{delimiter}1\n")
    assert (sheet.header, sheet.records[0].cells) == (("model", "bs"), ("a", "1"))
    assert sheet.records[0].line == 3


@pytest.mark.parametrize(("text", "problem"), [
    ("", "is empty"),
    (" \r\n\t\n", "is empty"),
    ('{"format": "torchsplit.profile"}', "looks like JSON"),
    ("[1, 2]", "looks like JSON"),
    ("\x89PNG\r\n\x1a\n\0\0\0", "is binary data, not text"),
    ("just words\nand more\n", "has only one column: 'just words\\nand more"),
    ('model,bs\na,"1\nb,2\n', "cannot be read as a row"),
    ("model,bs\na,\ud800\n", "half a surrogate pair"),
    ("model,bs\na," + "x" * 200_000, "cannot be read as a row"),
])  # fmt: skip
def test_what_is_no_table_is_said(text, problem):
    with pytest.raises(InputFault) as caught:
        read_sheet(text, "mine.csv")
    assert problem in caught.value.problem
    assert "mine.csv" in caught.value.where


@pytest.mark.slow
def test_a_table_of_too_many_bytes_or_rows_is_refused():
    with pytest.raises(InputFault, match="64 MiB"):
        read_sheet("a,b\n" + "x" * LARGEST_TABLE_BYTES)
    with pytest.raises(InputFault, match="64 MiB"):
        decode(b"x" * (LARGEST_TABLE_BYTES + 1))
    with pytest.raises(InputFault, match="200,000 rows"):
        read_sheet("a,b\n" + "1,2\n" * (LARGEST_TABLE_ROWS + 1))
    assert len(read_sheet("a,b\n" + "1,2\n" * LARGEST_TABLE_ROWS).records) == LARGEST_TABLE_ROWS


def test_bytes_are_utf8_or_what_a_spreadsheet_calls_unicode():
    text = "model,bs\nnaïve,1\n"
    assert decode(text.encode()) == text
    assert decode(b"\xef\xbb\xbf" + text.encode()) == text
    assert decode(text.encode("utf-16")) == text
    with pytest.raises(InputFault, match="UTF-8"):
        decode("naïve".encode("latin-1"))
