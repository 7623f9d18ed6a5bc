"""The commands on LLMs that batch continuously: sizes, estimates, a measured endpoint."""
