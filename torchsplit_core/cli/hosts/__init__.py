"""Commands about hosts and what stands on their GPUs."""
