"""A word beside a number: proven, gap, estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.format.glossary import explanation
from app.format.numbers import plain

Colour = Literal["red", "yellow", "green", "blue", "gray"]
"""As Streamlit names them."""


@dataclass(frozen=True, slots=True)
class Badge:
    """A word in a colour."""

    text: str
    colour: Colour

    @property
    def help(self) -> str | None:
        """What the word means, as markdown; None where the glossary does not say."""
        return plain(explanation(self.text)) or None
