"""A request prepared: options of every model, what is dominated, who must meet."""
