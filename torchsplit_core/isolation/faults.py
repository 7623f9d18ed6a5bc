"""The faults of a child that ended, and text that a child wrote, made safe to print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torchsplit_core.isolation.limits import Limits
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.units import GIB, MIB

ChildFaultKind = Literal["time_limit", "out_of_memory", "crashed"]


class ChildFault(InputFault):
    """The child itself ended: out of time, out of memory or by a crash; not a fault that it reported."""

    def __init__(self, where: str, problem: str, remedy: str, *, kind: ChildFaultKind = "crashed") -> None:
        super().__init__(where, problem, remedy)
        self.kind = kind


def printable(text: str) -> str:
    """The text with each control character (escape sequences, changes of direction, lone surrogates) spelt out.

    A child's code may write anything into its messages; none of it may reach a terminal as a command.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def printable_line(text: str) -> str:
    """Like `printable`, but on one line."""
    return printable(" ".join(text.split("\n")))


PARSE_ERRORS = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What parsing raises for a value that does not have the expected form."""


def malformed_answer_fault(subject: str, error: Exception) -> ChildFault:
    """The fault for an answer of an unexpected form, from the error that parsing raised."""
    list_errors = getattr(error, "errors", None)
    if callable(list_errors):  # pydantic's
        first = list_errors(include_url=False, include_input=False)[0]
        words = ": ".join((".".join(map(str, first["loc"])), first["msg"])).removeprefix(": ")
    elif isinstance(error, InputFault):
        words = f"{error.where}: {error.problem}".removeprefix(": ")
    elif isinstance(error, KeyError):
        words = f"{quoted(*error.args)} is missing or unknown"
    else:
        words = str(error) or type(error).__name__
    return ChildFault(
        subject,
        f"gave an answer that has not the form expected: {printable_line(words[:300])}",
        "Have the model's code write only to file descriptors that it opened. If it does, report this as a fault.",
    )


def exceeded_limit_fault(subject: str, excess: Mapping[str, Any], limits: Limits) -> ChildFault:
    """The fault for a limit of all processes together that the supervisor found exceeded."""
    name, value = str(excess["limit"]), int(excess["value"])
    if name == "tasks":
        return ChildFault(
            subject,
            f"ran {value} processes and threads at once, above the limit of {limits.tasks}",
            "Start fewer processes or threads, or raise the limit (Limits.tasks).",
        )
    if name == "total_memory_bytes":
        return ChildFault(
            subject,
            f"ran out of memory: all its processes together took {_format_size(value)}, "
            f"above the limit of {_format_size(limits.total_memory_bytes)}",
            "Use a smaller model or batch, start fewer processes, or raise the memory limit.",
            kind="out_of_memory",
        )
    wrote = f"{_format_size(value)} of files" if value < 2**60 else "folders too deep to count"
    return ChildFault(
        subject,
        f"wrote {wrote}, above the limit of {_format_size(limits.total_file_bytes)}",
        "Write less, or raise the limit (Limits.total_file_bytes).",
    )


def _format_size(size: int | None) -> str:
    known = size or 0
    return f"{known / GIB:.1f} GiB" if known >= GIB else f"{known / MIB:.0f} MiB"
