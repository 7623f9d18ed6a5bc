"""The Deploy page: a plan as files."""
