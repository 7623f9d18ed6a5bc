"""The fingerprint of a request: it ties an outcome to the question it answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from torchsplit_core.values import PlanRequest


def request_hash(request: PlanRequest) -> str:
    """SHA-256 (hex) of the request as canonical JSON: sorted keys, no spaces, every number a float.

    Whole numbers are written as floats so that 1 and 1.0 in a file are the same request.
    """
    text = json.dumps(_canonical(asdict(request)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value
