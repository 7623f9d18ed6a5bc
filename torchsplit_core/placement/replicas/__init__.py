"""Several pipelines of the whole model at once, on GPUs of their own, for the largest sum of their throughputs."""

from torchsplit_core.placement.replicas.outcome import replicas_outcome
from torchsplit_core.placement.replicas.pipeline_set_search import search_pipelines
from torchsplit_core.placement.replicas.pipelines import PipelineSetResult

__all__ = ["PipelineSetResult", "replicas_outcome", "search_pipelines"]
