"""The page of the evaluation."""
