"""What a block holds while its span is open."""

from __future__ import annotations

from typing import Protocol


class ActiveSpan(Protocol):
    """What a `with span(...)` block holds."""

    def set(self, **attributes: object) -> None:
        """Add attributes, by their names in `schema.ATTRIBUTES`; None leaves one out."""
