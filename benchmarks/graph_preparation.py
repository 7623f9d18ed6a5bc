"""What each step of the preparation brings to the sample models at real dimensions: units and cut points.

Traces every sample as `torchsplit trace` does. Prints two Markdown tables: the graph as traced and after each
step, and with all steps but one.
"""

from __future__ import annotations

import argparse

from torchsplit_core import workflow
from torchsplit_core.graph import STEPS, StepReport, preparation_report

SAMPLES = ("bert", "clip", "fastpitch", "llama", "ocr", "resnet50")


def reports(size: str, names: tuple[str, ...]) -> dict[str, tuple[StepReport, ...]]:
    """Each sample's report at this size, by source."""
    sources = [f"sample:{name}@{size}" for name in names]
    return {source: preparation_report(workflow.trace(source)) for source in sources}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="large")
    parser.add_argument("--samples", nargs="+", default=SAMPLES)
    options = parser.parse_args()
    found = reports(options.size, tuple(options.samples))
    names = [step.name for step in STEPS]
    print("| units · cut points | as traced | " + " | ".join(f"{name} done" for name in names) + " |")
    print("|---" * (len(STEPS) + 2) + "|")
    for source, rows in found.items():
        print(f"| {source} | " + " | ".join(f"{row.units} · {row.cut_points}" for row in rows) + " |")
    print("\n| cut points | all steps | " + " | ".join(f"without {name}" for name in names) + " |")
    print("|---" * (len(STEPS) + 2) + "|")
    for source, rows in found.items():
        cells = [rows[-1].cut_points, *(row.cut_points_without for row in rows[1:])]
        print(f"| {source} | " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
