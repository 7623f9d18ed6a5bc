"""LLM placement: which layers run on which particular GPUs, for the highest end-to-end throughput."""

from torchsplit_core.placement.outcome.verification import verify, violations
from torchsplit_core.placement.placer import place
from torchsplit_core.placement.request.validate import validate

__all__ = ["place", "validate", "verify", "violations"]
