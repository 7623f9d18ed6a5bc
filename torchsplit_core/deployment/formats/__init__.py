"""One module for every format that a plan is written in."""
