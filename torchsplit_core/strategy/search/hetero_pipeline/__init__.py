"""One pipeline across unlike entries of a fleet: stages of each on its own devices, in an order that is found."""
