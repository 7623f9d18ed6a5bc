"""The Plan page as one screen: where its parts stand, what folds, how one gets to them."""
