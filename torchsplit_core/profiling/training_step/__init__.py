"""Training steps of a model itself: timed on this processor, and their memory tracked without a device."""
