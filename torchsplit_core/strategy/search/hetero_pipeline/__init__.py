"""One pipeline across unlike entries of a fleet: each entry runs stages on its own devices; the search orders them."""
