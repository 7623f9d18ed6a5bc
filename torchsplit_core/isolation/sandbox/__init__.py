"""What a child may reach: its level, its namespaces or Landlock rules, its system calls, its private folder."""
