"""From a model source to a TorchGraph: samples and trusted files are exported in a child, .pt2 files read.

Only the child (`tracing.export`) loads torch.
"""

from torchsplit_core.graph.architecture import hash_model_architecture
from torchsplit_core.tracing.trace import trace

__all__ = ["hash_model_architecture", "trace"]
