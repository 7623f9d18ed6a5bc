"""Between a step's gradients and its weights: clipping, schedules, and whose turn `optimizer.step()` is."""
