"""The Profile page: measured and estimated points of a model."""
