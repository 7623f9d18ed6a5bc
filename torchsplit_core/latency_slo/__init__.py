"""Plans and simulation together: plans under load, and plans made so that responses keep their limits."""
