"""Where the project lies."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
NO_TORCH = TESTS / "support" / "no_torch"
"""A stand-in for torch that fails."""
