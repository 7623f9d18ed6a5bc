"""Numbers and small HTML as people read them."""
