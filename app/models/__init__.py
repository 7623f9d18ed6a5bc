"""The models of a workspace: dropped, traced, listed."""
