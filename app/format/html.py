"""Small HTML of cells that are escaped already: tables of rows, and of facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Fact = tuple[str, str]
"""What, and its value as HTML."""


def table_html(head: str, rows: Sequence[str]) -> str:
    """A table of escaped cells that scrolls on its own where the window is narrow."""
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide" tabindex="0"><table class="ts">{body}</table></div>'


def facts_html(facts: Iterable[Fact]) -> str:
    """Names and values as a table; values are HTML already."""
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    return f'<table class="ts facts"><tbody>{rows}</tbody></table>'
