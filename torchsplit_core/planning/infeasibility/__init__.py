"""Why there is no plan, and the smallest change that gives one."""
