"""Prices of GPUs from a dated table."""
