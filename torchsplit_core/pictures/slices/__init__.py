"""The parts of the slice map: a card a GPU, a tenant, the stages of cut models and their flow, the legend."""
