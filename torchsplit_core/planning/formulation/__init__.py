"""The exact mixed-integer program, and its objective level by level."""
