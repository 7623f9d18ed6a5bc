"""Tests, one folder a room. A package of its own: libraries leave one of that name among the installed ones."""
