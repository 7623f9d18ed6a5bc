"""A progress bar in the page while it computes something of a second or two."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import streamlit as st

from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.values import Progress

Result = TypeVar("Result")


def with_bar(work: Callable[[Progress], Result]) -> Result:
    """The result of `work`, which reports its progress to a bar that then goes."""
    place = st.empty()

    def progress(share: float, text: str) -> None:
        place.progress(min(share, 1.0), escape_markdown(f"{text[:1].upper()}{text[1:]}"))

    try:
        return work(progress)
    finally:
        place.empty()
