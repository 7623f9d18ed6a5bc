"""One parameter over a range."""
