"""Names of weights in a pipeline's process and in the whole model."""

from __future__ import annotations

import re

STAGES, REST = "torchsplit_stages", "torchsplit_rest"
"""What a process's module calls its stages, and what no stage reads; no model has such names."""
_STAGE_PREFIX = re.compile(rf"{STAGES}\.\d+\.parts\.\d+\.program\.|{REST}\.")


def name_in_model(name: str) -> str:
    """The name of a weight, or of its state, in the whole model; names that are not a pipeline's stay as they are."""
    return _STAGE_PREFIX.sub("", name)
