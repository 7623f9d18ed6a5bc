"""One address for models whose slices are servers of their own: what `torchsplit route` starts."""
