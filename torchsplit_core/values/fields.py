"""What the fields of contract files are made of: numbers, names and lists with their limits, as annotations.

`files/file_models.py` reads them; to everyone else `Amount` is a float and `Name` a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from torchsplit_core.values.limits import (
    LARGEST_MAGNITUDE,
    LARGEST_WHOLE,
    LONGEST_NAME,
    MOST_TIER,
    SMALLEST_POSITIVE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Limits of a number, which is finite. `not_tiny`: it is 0 or at least SMALLEST_POSITIVE."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    not_tiny: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Limits of the length of a text, a list or a table, and the pattern of a text. `is_name`: as `limits.is_name`."""

    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    is_name: bool = False


class AnyJson:
    """Marks an object of any JSON values that are finite and not nested too deep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileField:
    """How a field stands in files, where that is not as in the value.

    key: its key there. version_1_key: that in version 1 of a format that has a second one.
    required: files must have it, though the value has a default. default: what a file without it means, though the
    value has none (a tuple of that one default). after: the field that it follows in files.
    added: files were written before it was; left out where it has its default, so that their text and hash stay.
    complete: nothing of the object in it is left out. null: the value for which files have null.
    """

    key: str | None = None
    version_1_key: str | None = None
    required: bool = False
    default: tuple[Any] | None = None
    after: str | None = None
    added: bool = False
    complete: bool = False
    null: str | None = None


T = TypeVar("T")
Added = Annotated[T, FileField(added=True)]
Required = Annotated[T, FileField(required=True)]
NonEmpty = Annotated[T, Length(min_length=1)]

NonNegative = Annotated[float, Range(ge=0)]
Positive = Annotated[float, Range(gt=0)]
Finite = Annotated[float, Range()]
# What is asked, unlike what was found: quotients and sums of these stay finite.
Amount = Annotated[float, Range(ge=0, le=LARGEST_MAGNITUDE, not_tiny=True)]
Divisor = Annotated[float, Range(ge=SMALLEST_POSITIVE, le=LARGEST_MAGNITUDE)]
Signed = Annotated[float, Range(ge=-LARGEST_MAGNITUDE, le=LARGEST_MAGNITUDE)]
Efficiency = Annotated[float, Range(ge=SMALLEST_POSITIVE, le=1)]
PositiveShare = Annotated[float, Range(gt=0, le=1)]
PercentileRank = Annotated[float, Range(gt=0, lt=100)]
Count = Annotated[int, Range(ge=1, le=LARGEST_WHOLE)]
Tier = Annotated[int, Range(ge=0, le=MOST_TIER)]
Whole = Annotated[int, Range(ge=0, le=LARGEST_WHOLE)]
NodeId = Annotated[str, Length(min_length=1, max_length=LONGEST_NAME)]
"""Of a node of a graph or a value of its program: as torch, or who wrote the .pt2, called it."""
Name = Annotated[str, Length(min_length=1, max_length=LONGEST_NAME, is_name=True)]
Text = Annotated[str, Length(min_length=1)]
Sha256 = Annotated[str, Length(pattern="^[0-9a-f]{64}$")]
Facts = Mapping[str, str | bool | int | Finite]
Free = Annotated[Mapping[str, Any], AnyJson()]
