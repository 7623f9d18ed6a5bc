"""plan over the windows of a day, and windows of a trace of demand."""
