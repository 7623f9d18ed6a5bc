"""What the fields of all contract files are made of: numbers, names, lists and tables with their limits."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field
from pydantic_core import PydanticCustomError

from torchsplit_core.values import quoted
from torchsplit_core.values.limits import (
    LARGEST_MAGNITUDE,
    LARGEST_WHOLE,
    LONGEST_NAME,
    MOST_TIER,
    NAME_FAULT,
    SMALLEST_POSITIVE,
    is_name,
)

MOST_DEPTH = 32
"""Lists and objects inside of each other in a part of a file that may hold any JSON."""


def _name(text: str) -> str:
    if not is_name(text):
        raise PydanticCustomError("name", "{problem}", {"problem": f"is {quoted(text)}, which {NAME_FAULT}"})
    return text


def _not_tiny(number: float) -> float:
    if 0 < number < SMALLEST_POSITIVE:
        raise PydanticCustomError("tiny", "", {"ge": SMALLEST_POSITIVE})
    return number


def _check_free(value: dict[str, Any]) -> dict[str, Any]:
    """Any JSON, but finite and not deep: what reads it back recurses, and what writes it refuses infinity."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        inside: list[Any] = []
        for container in level:
            for item in container.values() if isinstance(container, dict) else container:
                if isinstance(item, float) and not math.isfinite(item):
                    raise PydanticCustomError("not_finite", "holds a number that is not finite")
                if isinstance(item, (dict, list)):
                    inside.append(item)
        level = inside
    if level:
        raise PydanticCustomError("depth", f"is nested more than {MOST_DEPTH} levels deep")
    return value


class _FirstFault(FailFast):
    """FailFast that can stand in a union, whose members Python 3.11 hashes."""

    __hash__ = object.__hash__


T = TypeVar("T")
K = TypeVar("K")
# A list or table stops at its first fault: millions of faults would cost far more memory than the file.
Rows = Annotated[list[T], _FirstFault()]
Table = Annotated[dict[K, T], _FirstFault()]
Free = Annotated[dict[str, Any], AfterValidator(_check_free)]

Facts = Table[str, str | bool | int | Annotated[float, Field(allow_inf_nan=False)]]

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
# What is asked, unlike what was found: quotients and sums of these stay finite.
Amount = Annotated[float, Field(ge=0, le=LARGEST_MAGNITUDE, allow_inf_nan=False), AfterValidator(_not_tiny)]
Divisor = Annotated[float, Field(ge=SMALLEST_POSITIVE, le=LARGEST_MAGNITUDE, allow_inf_nan=False)]
Signed = Annotated[float, Field(ge=-LARGEST_MAGNITUDE, le=LARGEST_MAGNITUDE, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=LARGEST_WHOLE)]
Tier = Annotated[int, Field(ge=0, le=MOST_TIER)]
Whole = Annotated[int, Field(ge=0, le=LARGEST_WHOLE)]
NodeId = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
"""Of a node of a graph or a value of its program: as torch, or who wrote the .pt2, called it."""
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_name)]
Basis = Literal["measured", "emulated", "estimated"]


class Strict(BaseModel):
    """No unknown keys, no coercion of text to numbers. What checks a model is built when first used, under a lock."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
