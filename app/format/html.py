"""HTML tables of rows, and of facts, from cells that are escaped already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from app.format.glossary import explain

Fact = tuple[str, str]
"""A name, and its value as HTML."""
_HEAD = re.compile(r"<th(?P<attributes>(?![^>]*\btitle=)[^>]*)>(?P<text>[^<]*)</th>")
"""A head without an explanation."""


def table_html(head: str, rows: Sequence[str]) -> str:
    """A table of escaped cells that scrolls by itself in a narrow window; the glossary explains its heads on hover."""
    body = f"<thead><tr>{_HEAD.sub(_explain_head, head)}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide" tabindex="0"><table class="ts">{body}</table></div>'


def _explain_head(head: re.Match[str]) -> str:
    """The head with the glossary's explanation as its title, if there is one."""
    meaning = explain(html.unescape(head["text"]))
    if not meaning:
        return head[0]
    return f'<th{head["attributes"]} title="{html.escape(meaning)}">{head["text"]}</th>'


def facts_html(facts: Iterable[Fact]) -> str:
    """Names and values as a table; values are HTML already."""
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    return f'<table class="ts facts"><tbody>{rows}</tbody></table>'
