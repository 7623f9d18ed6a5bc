"""The literal integer program and its levels."""
