"""The graph to cut: blocks, co-location, orders, memory and costs of stages."""
