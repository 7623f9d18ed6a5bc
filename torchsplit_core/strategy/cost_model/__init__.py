"""One step: kernels, a layer, the network, memory, the estimate and its interval. Knows nothing of tables."""
