"""Power and energy of plans, estimated from the limits of cards."""
