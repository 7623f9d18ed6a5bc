"""Two plans compared: changes of slices, GPUs and models, and drains."""
