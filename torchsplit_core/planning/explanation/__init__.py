"""Why a plan is as it is: what binds, the effect of one more GPU, the price of each step."""
