"""Keys of components."""

from __future__ import annotations

import hashlib


def component_key(key: str) -> str:
    """The key as the library takes it: it refuses two underscores in a row, which names of models may have."""
    return key if "__" not in key else hashlib.sha256(key.encode()).hexdigest()[:32]
