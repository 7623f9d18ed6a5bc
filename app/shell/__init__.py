"""What every page has: frame, navigation, running jobs, widgets."""
