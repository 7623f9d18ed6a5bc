"""Joint LLM placement: which layers run on which particular GPUs, for the highest end-to-end throughput."""

from torchsplit_core.placement.place import place
from torchsplit_core.placement.validate import validate
from torchsplit_core.placement.verify import verify, violations

__all__ = ["place", "validate", "verify", "violations"]
