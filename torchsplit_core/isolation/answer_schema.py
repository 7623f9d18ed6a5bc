"""The form of what a child answers: foreign code shares the child, so it can answer what it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter


class AnswerSchema(BaseModel):
    """An object with these fields, others may stand beside them. Numbers are finite, and nothing is converted."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def schema_reader(schema: Any) -> Callable[[Any], Any]:
    """For `run_limited`: reads an answer of this form, a `AnswerSchema` or a type of JSON values, and returns it as
    it came.

    It raises ValueError for any other.
    """
    adapter = TypeAdapter(schema)

    def validated(answer: Any) -> Any:
        adapter.validate_python(answer, strict=True)
        return answer

    return validated
