"""The interface of an open span."""

from __future__ import annotations

from typing import Protocol


class ActiveSpan(Protocol):
    """The target of `with span(...) as`."""

    def set(self, **attributes: object) -> None:
        """Add attributes, by their names in `schema.ATTRIBUTES`; None leaves one out."""
