"""Engines that batch continuously: requests join and leave a running batch at the steps of an engine."""
