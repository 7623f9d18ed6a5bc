"""Several pipelines of the whole model at once, on GPUs of their own, for the largest sum of their throughputs."""

from torchsplit_core.placement.replicas.driver import search_pipelines
from torchsplit_core.placement.replicas.outcome import outcome_of
from torchsplit_core.placement.replicas.pipelines import Pipelines

__all__ = ["Pipelines", "outcome_of", "search_pipelines"]
