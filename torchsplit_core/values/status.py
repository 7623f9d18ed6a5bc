"""How a search, a question or a program ends: one set of words for each, so that any other is a type error."""

from __future__ import annotations

from typing import Literal

SolveStatus = Literal["optimal", "feasible", "infeasible", "timeout"]
"""Of an outcome: proven best; found, and not proven best; proven that there is none; nothing found in time."""

Unsolved = Literal["infeasible", "timeout"]
"""Of an outcome without a plan."""

ProgramStatus = Literal["optimal", "feasible", "infeasible", "unknown"]
"""Of a linear or integer program: as above, but that nothing was found says nothing of time."""

SearchVerdict = Literal["found", "none", "unknown"]
"""Of a question whether something exists: it does, here it is; proven that it does not; neither was shown."""
