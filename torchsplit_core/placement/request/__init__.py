"""Placement requests: decoders, fleets, divisions, validation."""
