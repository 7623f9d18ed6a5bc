"""The exact plan with one tenant a slice."""
