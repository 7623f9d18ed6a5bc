"""A strategy as a plain PyTorch file that anyone can read, run by torchrun and edit."""
