"""Servers that come and go: queues and engines that keep their state from one stretch of time to the next."""
