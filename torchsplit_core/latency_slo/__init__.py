"""Combines planning and simulation: plans under load, and plans whose responses keep their limits."""
