"""How a run divides a model by more than its data: tensors, sequences, experts."""
