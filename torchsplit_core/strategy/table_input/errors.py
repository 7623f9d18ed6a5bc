"""Why a row of a table can't be predicted."""

from __future__ import annotations


class RowError(ValueError):
    """A single reason, in words for the person who wrote the row."""
