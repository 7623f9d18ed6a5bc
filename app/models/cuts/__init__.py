"""The Partition page: where a model is cut, by search or by hand."""
