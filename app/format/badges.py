"""A word beside a number: proven, gap, estimated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.format.glossary import explain
from torchsplit_core.pictures.numbers import escape_markdown

Colour = Literal["red", "yellow", "green", "blue", "gray"]
"""As Streamlit names them."""
AS_TEXT: Mapping[Literal["light", "dark"], Mapping[Colour, str]] = {
    "light": {
        "green": "#2b6b4b",
        "red": "#a3241b",
        "yellow": "#8a4b06",
        "blue": "#2f4fa8",
        "gray": "#50575e",
    },
    "dark": {"green": "#7fd3a4", "red": "#ffa198", "yellow": "#fbbf24", "blue": "#9db4f5", "gray": "#b3bcc5"},
}
"""The colours for words in a table, with a contrast of at least 4.5 to 1 in either theme."""


@dataclass(frozen=True, slots=True)
class Badge:
    """A word in a colour."""

    text: str
    colour: Colour

    @property
    def help(self) -> str | None:
        """The glossary's explanation as Markdown; None without one."""
        return escape_markdown(explain(self.text)) or None
