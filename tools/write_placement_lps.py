"""Write the golden rows of the literal placement program to tests/placement/golden (after a change of it)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "placement"))

from placement_golden import GOLDEN, families, family_text

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    names = [name for name, _, _ in families()]
    for path in GOLDEN.glob("*.lp"):
        if path.stem not in names:
            path.unlink()
    for name in names:
        (GOLDEN / f"{name}.lp").write_text(family_text(name), encoding="utf-8")
