"""One short file a page: read state, draw widgets, call one thing, draw one chart."""
