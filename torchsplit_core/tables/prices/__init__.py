"""Tables of prices."""
