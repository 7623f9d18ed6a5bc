"""Plans that hold demand samples: the fewest GPUs for a share of them, or the largest share on the fleet."""
