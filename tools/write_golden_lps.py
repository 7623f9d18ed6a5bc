"""Write the planner's golden programs to tests/planning/golden (run after a change of a formulation)."""

from __future__ import annotations

from tests.support.planning.golden import GOLDEN, NAMES, golden_text

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.lp"):
        if path.stem not in NAMES:
            path.unlink()
    for name in NAMES:
        (GOLDEN / f"{name}.lp").write_text(golden_text(name), encoding="utf-8")
