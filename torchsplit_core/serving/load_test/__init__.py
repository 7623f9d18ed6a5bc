"""Load for a server: a client of its own, arrivals, what was measured beside what was said."""
