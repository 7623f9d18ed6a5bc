"""A strategy as a plain PyTorch file that anyone can read, edit and run with torchrun."""
