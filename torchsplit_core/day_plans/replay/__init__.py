"""A planned day simulated over a trace of demand, beside one plan and a rule that scales replicas by their load."""
