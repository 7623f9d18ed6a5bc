"""Write the golden programs of placements to tests/placement/golden (run after a change of a formulation)."""

from __future__ import annotations

from tests.support.placement.golden import GOLDEN, families, family_text
from tests.support.placement.programs import PROGRAMS

if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    texts = {name: family_text(name) for name, _, _ in families()}
    texts |= {name: build() for name, (_, build) in PROGRAMS.items()}
    for path in GOLDEN.glob("*.lp"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        (GOLDEN / f"{name}.lp").write_text(text, encoding="utf-8")
