"""The Place page: an LLM's layers on particular GPUs."""
