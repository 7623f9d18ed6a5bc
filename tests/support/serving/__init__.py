"""Plans to serve, and servers that run in the test's own process."""
