"""What is measured next: devices, grid, the running measurement."""
