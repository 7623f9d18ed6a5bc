"""The best model FLOP/s utilisation of published training steps, by card and size: what estimates are held against.

    python -m benchmarks.published_mfu [--write]

Of the rows of benchmarks/data/training_steps.csv that can be read, by the model's own operations over the dense peak of
the row's precision, as strategies have it. `--write` puts the table into torchsplit_core/strategy/data.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path

from torchsplit_core.strategy.published_mfu import FIELDS, FILE, SIZES, size_class
from torchsplit_core.strategy.search.candidate import peak_flops, step_flops
from torchsplit_core.strategy.table_input.errors import RowError
from torchsplit_core.strategy.table_input.parsed_row import read_row

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks" / "data" / "training_steps.csv"


def best_rows() -> list[dict[str, str]]:
    """The best row for each GPU and size class, as rows of the table."""
    best: dict[tuple[str, int], tuple[float, dict[str, str]]] = {}
    with ROWS.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            try:
                parsed = read_row(row)
                seconds = float(row["iter_s"])
            except (RowError, ValueError):
                continue
            peak = parsed.choices.devices * peak_flops(parsed.device, parsed.job.precision)
            mfu = step_flops(parsed.model, parsed.job.global_batch) / seconds / peak
            key = parsed.device.name, size_class(parsed.model.parameters)
            if key not in best or mfu > best[key][0]:
                best[key] = mfu, row
    return [
        {
            "gpu": card, "size": str(place), "mfu": f"{mfu:.3f}", "model": row["model"],
            "framework": row["framework"], "n_gpus": row["n_gpus"], "precision": row["precision"],
            "source": row["source"],
        }
        for (card, place), (mfu, row) in sorted(best.items())
    ]  # fmt: skip


def main() -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    rows = best_rows()
    if parser.parse_args().write:
        text = io.StringIO()
        writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        FILE.write_text(text.getvalue(), encoding="utf-8")
    print("| GPU | weights | best MFU | model | GPUs | precision | framework | source |")
    print("|---|---|---:|---|---:|---|---|---|")
    for row in rows:
        low, high = SIZES[int(row["size"])], SIZES[int(row["size"]) + 1]
        print(
            f"| {row['gpu']} | {low:g} to {high:g} billion | {row['mfu']} | {row['model']} | {row['n_gpus']} | "
            f"{row['precision']} | {row['framework']} | {row['source']} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
