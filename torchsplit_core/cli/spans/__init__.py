"""The command trace-report."""
