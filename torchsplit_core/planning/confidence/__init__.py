"""How sure a plan is: whether demands hold at the low end of what it rests on, and what to measure next."""
