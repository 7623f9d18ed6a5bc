"""From a search result to a PlanOutcome: assignment to slices, figures of models, objective, warnings."""
