"""The HTTP frontend of a served plan, and the server process around it."""
