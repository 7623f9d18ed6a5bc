"""Splits text into rows of cells: delimiter, quoting, byte order mark, blank lines, limits; knows no columns.

A record keeps the line on which it begins, so that messages can name it.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from dataclasses import dataclass

from torchsplit_core.values import InputFault, InternalFault, quoted

LARGEST_TABLE_BYTES = 64 * 2**20
"""A larger table is refused before it is read."""

LARGEST_TABLE_ROWS = 200_000
"""More rows are refused: neither people nor the planner could use such a profile."""

MOST_COLUMNS = 1000
MOST_CELLS = 4_000_000
"""Twenty columns at LARGEST_TABLE_ROWS; a parsed cell takes 20 times the memory of its two bytes in the file."""

DELIMITERS = ("\t", ";", ",", "|")
"""In order of preference if they occur equally often: a comma may also be part of a number or a name."""

UNQUOTED = "|"
"""The delimiter of `sacct --parsable2` and its like, whose quotes are plain characters."""

_SMALLER = "Split it into smaller files."
_EXPORT = "Export the sheet as CSV (UTF-8), columns separated by commas, semicolons, tabs or |."


@dataclass(frozen=True, slots=True)
class Record:
    """One row: the line on which it begins (from 1) and its cells, stripped of surrounding white space."""

    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A header and its records. `decimal_comma`: 1,5 is a number."""

    header: tuple[str, ...]
    records: tuple[Record, ...]
    delimiter: str

    @property
    def decimal_comma(self) -> bool:
        return self.delimiter in ("\t", ";")


def decode(data: bytes, origin: str = "the file") -> str:
    """Decode UTF-8 with or without a byte order mark, or UTF-16 with one (a spreadsheet's Unicode text).

    Raises InputFault for more than 64 MiB and for other bytes.
    """
    if len(data) > LARGEST_TABLE_BYTES:
        raise InputFault(origin, _too_large(len(data)), _SMALLER)
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputFault(
            origin,
            f"is not text in {encoding.removesuffix('-sig').upper()} from byte {error.start} on",
            _EXPORT,
        ) from error


def read_sheet(text: str, origin: str = "the file") -> Sheet:
    """The header and records of a delimited text.

    Raises InputFault if the text is empty, binary, JSON, too large, badly quoted or has no second column.
    """
    text = _check_text(text, origin).lstrip("\ufeff")
    delimiter, skip = _delimiter(text)
    if (marks := text.count(delimiter) + text.count("\n") + text.count("\r")) > MOST_CELLS:
        raise InputFault(origin, f"has about {marks:,} cells, more than {MOST_CELLS:,}", _SMALLER)
    header: tuple[str, ...] | None = None
    records: list[Record] = []
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_NONE if delimiter == UNQUOTED else csv.QUOTE_MINIMAL,
        strict=True,
    )
    begins = 1
    try:
        for cells in reader:
            line, begins = begins, reader.line_num + 1
            if line <= skip or not any(cell.strip() for cell in cells):
                continue
            stripped = tuple(cell.strip() for cell in cells)
            if len(stripped) > MOST_COLUMNS:
                raise InputFault(
                    f"{origin}: line {line}",
                    f"has {len(stripped):,} columns, more than {MOST_COLUMNS:,}",
                    _EXPORT,
                )
            if header is None:
                header = stripped
                continue
            if len(records) == LARGEST_TABLE_ROWS:
                raise InputFault(origin, f"has more than {LARGEST_TABLE_ROWS:,} rows", _SMALLER)
            records.append(Record(line, stripped))
    except csv.Error as error:
        raise InputFault(
            f"{origin}: line {begins}",
            f"cannot be read as a row: {error}",
            "Close the quote, or double the quotes inside a quoted cell.",
        ) from error
    if header is None or len(header) < 2:
        raise InputFault(origin, f"has only one column: {quoted(text[:40])}", _EXPORT)
    return Sheet(header, tuple(records), delimiter)


def _check_text(text: str, origin: str) -> str:
    """Return the text. Raises InputFault if it cannot be a table at all."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise InputFault(origin, "has half a surrogate pair, which is no character", _EXPORT) from error
    if size > LARGEST_TABLE_BYTES:
        raise InputFault(origin, _too_large(size), _SMALLER)
    if "\0" in text:
        raise InputFault(origin, "is binary data, not text", _EXPORT)
    start = text.lstrip("\ufeff").strip()[:1]
    if not start:
        raise InputFault(origin, "is empty", _EXPORT)
    if start in ("{", "["):
        raise InputFault(
            origin, f"looks like JSON, not like a table: {quoted(text[:40])}", "Pass a CSV file."
        )
    return text


def _too_large(size: int) -> str:
    return f"has {size:,} bytes, more than {LARGEST_TABLE_BYTES >> 20} MiB"


def _delimiter(text: str) -> tuple[str, int]:
    """The delimiter, and the number of lines at the top up to the one that declares it (Excel's `sep=;`)."""
    number, first = _first_line(text)
    declared = re.fullmatch(r"\s*sep=([,;\t])\s*", first, re.IGNORECASE)
    if declared:
        return declared[1], number
    outside = "".join(first.split('"')[::2])
    return max(DELIMITERS, key=outside.count), 0


def _first_line(text: str) -> tuple[int, str]:
    """Number (from 1) and text of the first line that is not blank; the text must have one."""
    for number, match in enumerate(re.finditer(r"[^\r\n]*(?:\r\n|\r|\n)?", text), 1):
        if match[0].strip():
            return number, match[0]
    raise InternalFault("a text that is not blank has a line that is not")
