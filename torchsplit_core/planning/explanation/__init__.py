"""Why a plan is as it is: what binds, what one more GPU brings, what each step costs."""
