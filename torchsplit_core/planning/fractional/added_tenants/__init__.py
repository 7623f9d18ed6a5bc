"""Tenants added to slices that have one or none."""
