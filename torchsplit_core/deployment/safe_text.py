"""User-defined names and texts, escaped for where they are written."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

# A pod's name is its Deployment's plus up to 17 characters, and a host name has at most 63.
_LONGEST = 46


def dns_labels(readable: Mapping[K, Sequence[str]]) -> dict[K, str]:
    """A distinct RFC 1123 label for each key (lower case, digits, hyphens, at most 46 characters).

    A label consists of the key's readable parts. Keys whose labels would be equal, too long or empty get a suffix of
    their hash: a label depends on collisions, never on order.
    """
    plain = {key: "-".join(filter(None, map(_label, parts))) for key, parts in readable.items()}
    count = Counter(plain.values())
    names = {}
    for key, base in plain.items():
        if not base or len(base) > _LONGEST or count[base] > 1:
            digest = hashlib.sha256(repr(key).encode()).hexdigest()[:8]
            base = f"{base[: _LONGEST - 9].strip('-') or 'x'}-{digest}"
        names[key] = base
    return names


def one_line(text: str) -> str:
    """The text in ASCII on one line, quoted: it cannot end its comment."""
    return json.dumps(text)


def markdown(text: str) -> str:
    """The text for a cell of a Markdown table: shown, never interpreted."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(r"([\\`*_{}\[\]()#|!~$])", r"\\\1", html.escape(flat, quote=False))


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
