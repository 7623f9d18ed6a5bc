"""The Graph page: a model's dataflow, its regions, its preparation for cutting."""
