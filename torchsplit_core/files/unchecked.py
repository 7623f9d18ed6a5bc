"""Values as JSON without the checks of a contract file, for drafts in the store.

A slider's edit waits for this write: a request of 16 models takes a fortieth of its contract file's time. Only this
program reads it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Value = TypeVar("Value")


def write_unchecked(value: Any) -> bytes:
    """The fields of a frozen value as JSON. Its numbers are finite: JSON has no others."""
    kind: Any = type(value)
    return _adapter(kind).dump_json(value)


def read_unchecked(data: bytes, kind: type[Value], *, origin: str) -> Value:
    """The value of that kind again, equal to the one that was written. Raises InputFault where it is none."""
    from pydantic import ValidationError

    known: Any = kind
    try:
        value: Value = _adapter(known).validate_json(data)
    except ValidationError as error:
        raise InputFault(origin, "is damaged or of another version", "Discard it, and edit again.") from error
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
