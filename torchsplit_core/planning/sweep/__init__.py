"""One parameter of a request over a range."""
