"""Plans by hand: evaluated, moved, tried."""
