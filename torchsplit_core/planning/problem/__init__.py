"""The prepared request: options of every model, dominance, co-location sets."""
