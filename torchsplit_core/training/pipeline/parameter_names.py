"""Names of weights in a process of a pipeline and in the whole model."""

from __future__ import annotations

import re

STAGES, REST = "torchsplit_stages", "torchsplit_rest"
"""What a process's module calls its stages, and what no stage reads; no model has such names."""
_STAGE_PREFIX = re.compile(rf"{STAGES}\.\d+\.parts\.\d+\.program\.|{REST}\.")


def name_in_model(name: str) -> str:
    """The name that a weight, or what is told of it, has in the whole model; of another model it is as it is."""
    return _STAGE_PREFIX.sub("", name)
