"""How a run exchanges gradients under DDP: measured, chosen, applied, timed."""
