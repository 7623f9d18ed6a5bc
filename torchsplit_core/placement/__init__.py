"""Joint LLM placement: which layers run on which particular GPUs, for the highest end-to-end throughput."""
