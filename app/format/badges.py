"""A word beside a number: proven, gap, estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Colour = Literal["red", "yellow", "green", "blue", "gray"]
"""As Streamlit names them."""


@dataclass(frozen=True, slots=True)
class Badge:
    """A word in a colour."""

    text: str
    colour: Colour
