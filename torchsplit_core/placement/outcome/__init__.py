"""The answer: the pipeline, why there is none, the check without a solver."""
