"""The ways in which a run divides a model, besides its data: tensors, sequences, experts."""
