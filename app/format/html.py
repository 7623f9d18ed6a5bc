"""Small HTML of cells that are escaped already: tables of rows, and of facts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from app.format.glossary import explain

Fact = tuple[str, str]
"""What, and its value as HTML."""
_HEAD = re.compile(r"<th(?P<attributes>(?![^>]*\btitle=)[^>]*)>(?P<text>[^<]*)</th>")
"""A head that says nothing of what it means."""


def table_html(head: str, rows: Sequence[str]) -> str:
    """A table of escaped cells that scrolls on its own where the window is narrow; its heads explain themselves."""
    body = f"<thead><tr>{_HEAD.sub(_explain_head, head)}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide" tabindex="0"><table class="ts">{body}</table></div>'


def _explain_head(head: re.Match[str]) -> str:
    """The head with its word of the glossary as a title, where there is one."""
    meaning = explain(html.unescape(head["text"]))
    if not meaning:
        return head[0]
    return f'<th{head["attributes"]} title="{html.escape(meaning)}">{head["text"]}</th>'


def facts_html(facts: Iterable[Fact]) -> str:
    """Names and values as a table; values are HTML already."""
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    return f'<table class="ts facts"><tbody>{rows}</tbody></table>'
