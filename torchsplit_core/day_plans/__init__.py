"""Plans over the day: one for each window of demand, the changes between them, and one plan that holds all day."""
