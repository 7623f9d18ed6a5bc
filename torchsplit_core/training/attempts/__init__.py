"""One start of a run's processes on a node: where its agent meets the others, what it needs around it, who stalls."""
