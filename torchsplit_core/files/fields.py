"""Numbers of `values.fields` as pydantic takes them, for models of other data than contract files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.files.file_models import checked_type
from torchsplit_core.values import fields

if TYPE_CHECKING:
    from torchsplit_core.values.fields import Count, Facts, NonNegative, Positive, Whole
else:
    Count, Facts, NonNegative, Positive, Whole = map(
        checked_type, (fields.Count, fields.Facts, fields.NonNegative, fields.Positive, fields.Whole)
    )

__all__ = ["Count", "Facts", "NonNegative", "Positive", "Whole"]
