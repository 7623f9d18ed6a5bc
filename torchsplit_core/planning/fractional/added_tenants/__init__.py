"""Tenants added to slices that have some already."""
