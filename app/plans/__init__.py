"""The Plan page: request, plan, table, comparison, report."""
