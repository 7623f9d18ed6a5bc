"""One attempt of a run's processes on a node: the agents' rendezvous, the agent's environment, hang detection."""
