"""Schemas for a child's answers: foreign code shares the child, so it can send anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter


class AnswerSchema(BaseModel):
    """An object with at least these fields; others are allowed. Numbers must be finite; no value is converted."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def schema_reader(schema: Any) -> Callable[[Any], Any]:
    """A reader for `run_limited` that validates an answer and returns it unchanged.

    `schema` is an `AnswerSchema` or a type of JSON values. The reader raises ValueError for any other answer.
    """
    adapter = TypeAdapter(schema)

    def validated(answer: Any) -> Any:
        adapter.validate_python(answer, strict=True)
        return answer

    return validated
