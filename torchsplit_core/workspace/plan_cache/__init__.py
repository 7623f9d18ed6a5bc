"""The plans that any work of a workspace has come upon, by the question that each answers."""
