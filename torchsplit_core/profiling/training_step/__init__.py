"""Training steps of a model: timed on this processor, and their memory tracked without a device."""
