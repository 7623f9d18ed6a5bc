"""A log of requests as a table: when each came, how many tokens it brought and got."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.tables import LARGEST_TABLE_BYTES, decode, read_sheet
from torchsplit_core.tables.cell_parsing import BadCell
from torchsplit_core.tables.record_fields import RecordFields, column_layout, read_record
from torchsplit_core.values import InputFault, system_reason

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
_LONGEST = 10**7


@dataclass(frozen=True, slots=True)
class RequestList:
    """Requests in order of arrival, seconds from the first."""

    arrival_s: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]


def read_requests(path: str, folder: Path) -> RequestList:
    """The requests of a CSV with the columns arrival_s, prompt_tokens, output_tokens; further ones play no part.

    Raises InputFault naming the line for a cell that is no number, for a length of 0, and for a time that falls.
    """
    sheet = read_sheet(read_text(path, folder), path)
    if missing := [name for name in COLUMNS if name not in sheet.header]:
        raise InputFault(
            path, f"has no column {', '.join(missing)}", f"Give the columns {', '.join(COLUMNS)}."
        )
    layout = column_layout(sheet)
    requests: list[tuple[float, int, int]] = []
    for record in sheet.records:
        request = read_record(record, layout, _request)
        if isinstance(request, BadCell):
            raise InputFault(
                f"{path}: line {request.line}, {request.column}", request.problem, request.remedy
            )
        if requests and request[0] < requests[-1][0]:
            raise InputFault(
                f"{path}: line {record.line}",
                f"arrival_s falls from {requests[-1][0]:g} to {request[0]:g}",
                "Sort the requests by their arrival.",
            )
        requests.append(request)
    if not requests:
        raise InputFault(path, "has no request below its header", "Give one request a line.")
    first = requests[0][0]
    return RequestList(
        tuple(arrival - first for arrival, _, _ in requests),
        tuple(prompt for _, prompt, _ in requests),
        tuple(output for _, _, output in requests),
    )


def read_text(path: str, folder: Path) -> str:
    """The text of a file in `folder`, or else in the current one. Raises InputFault if it can not be read."""
    beside = folder / path
    try:
        with (beside if beside.is_file() else Path(path)).open("rb") as stream:
            data = stream.read(LARGEST_TABLE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = system_reason(error) if isinstance(error, OSError) else str(error)
        raise InputFault(path, f"cannot be read: {reason}", "Check the path.") from error
    return decode(data, path)


def _request(fields: RecordFields) -> tuple[float, int, int]:
    return (
        fields.not_negative("arrival_s"),
        fields.count("prompt_tokens", _LONGEST),
        fields.count("output_tokens", _LONGEST),
    )
