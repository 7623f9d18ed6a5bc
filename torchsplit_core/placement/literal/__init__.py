"""The literal integer program, the reference of the exact search."""
