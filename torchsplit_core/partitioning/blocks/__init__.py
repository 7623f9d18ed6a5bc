"""The graph that is cut: blocks, what moves as one, orders, memory and costs of a stage."""
