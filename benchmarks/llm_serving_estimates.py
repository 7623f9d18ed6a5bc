"""LLM serving as `estimate-serving` predicts it from sizes, against measured stages and logs of vLLM.

    python -m benchmarks.llm_serving_estimates

Rows: examples/llm_serving.csv (H100) and each log of data/llm_requests.csv as one row (sources and licences stand in
data/NOTICE.md). A row's error is |predicted - measured| / measured. *peaks alone*: the same with every peak reached and
nothing that takes time beside weights, keys, products and links. *family left out*: step times and first tokens times
the mean error of the other families' rows, a family being a decoder on a GPU. *first stage known*: later stages of an
experiment beside its first one.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from torchsplit_core.llm import EngineConstants
from torchsplit_core.serving_estimates.prediction import Correction, RowFigures, predict_row
from torchsplit_core.serving_estimates.row import ServingRow
from torchsplit_core.serving_estimates.table import read_rows, time_per_token

DATA = Path(__file__).resolve().parent / "data"
SERVING = Path(__file__).resolve().parents[1] / "examples" / "llm_serving.csv"
LOGS = {
    ("RTX-PRO-6000-Blackwell-96GB", "Llama-3.1-8B"): {"max_num_seqs": "128"},
    ("RTX4090-24GB", "Llama-3.1-8B"): {"max_num_seqs": "256", "kv_blocks": "2588", "max_model_len": "32768"},
    ("RTX-PRO-6000-Blackwell-96GB", "Qwen3-32B"): {"max_num_seqs": "128", "tp": "2"},
}
"""Settings of the logs, as their publishers report them."""
PEAKS = EngineConstants(
    weight_bandwidth=1, kv_bandwidth=1, matrix_compute=1, attention_compute=1, expert_compute=1, few_tokens=0,
    step_ms=0, layer_ms=0, expert_layer_ms=0, sequence_ms=0, nvlink_reduce_ms=0, pcie_reduce_ms=0, nvlink_share=1,
    pcie_share=1, front_ms=0, steps_ahead=0, cached_questions=0, text_pieces=1,
)  # fmt: skip
JUDGED = ("ttft_mean_ms", "itl_mean_ms", "e2e_mean_ms", "e2e_p99_ms")
TITLES = ("first token", "time per token", "response", "response p99")


@dataclass(frozen=True)
class Judged:
    """A row, the earlier stages of its experiment, and its predictions by the way they were made."""

    row: ServingRow
    earlier: tuple[ServingRow, ...]
    plain: RowFigures
    peaks: RowFigures
    left_out: RowFigures
    beside: RowFigures | None

    @property
    def family(self) -> tuple[str, str]:
        return self.row.model, self.row.device.gpu_type


def measured_rows(folder: Path, most: int | None = None) -> list[ServingRow]:
    """The rows, with the logs written into the folder as `estimate-serving` reads them; `most`: rows of each file."""
    text = SERVING.read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))[:most]
    columns = [*rows[0], "requests"]
    with (DATA / "llm_requests.csv").open(encoding="utf-8", newline="") as file:
        requests = list(csv.DictReader(file))
    for (gpu, model), settings in list(LOGS.items())[:most]:
        log = [request for request in requests if (request["gpu"], request["model"]) == (gpu, model)]
        path = folder / f"{gpu}-{model}.csv"
        path.write_text(_csv(("arrival_s", "prompt_tokens", "output_tokens"), log), encoding="utf-8")
        rows.append(
            {"model": model, "gpu": gpu, "tp": "1", "precision": "bf16", "max_num_batched_tokens": "2048"}
            | {"requests": str(path), "engine": "vLLM 0.19.0"}
            | settings
            | log_figures(log)
        )
    return [row for row in read_rows(_csv(columns, rows), folder) if isinstance(row, ServingRow)]


def log_figures(log: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The figures of a log, in ms: time per token over all gaps."""
    first = [float(row["first_token_s"]) - float(row["arrival_s"]) for row in log]
    last = [float(row["last_token_s"]) - float(row["arrival_s"]) for row in log]
    gaps = sum(int(row["output_tokens"]) - 1 for row in log)
    between = sum(end - begin for begin, end in zip(first, last, strict=True)) / gaps
    p99 = sorted(last)[math.ceil(0.99 * len(last)) - 1]
    figures = {
        "ttft_mean_ms": fmean(first),
        "itl_mean_ms": between,
        "e2e_mean_ms": fmean(last),
        "e2e_p99_ms": p99,
    }
    return {name: str(1e3 * seconds) for name, seconds in figures.items()}


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def judge(rows: Sequence[ServingRow]) -> list[Judged]:
    """Every row with its predictions."""
    known = EngineConstants()
    earlier = {
        place: tuple(
            before for before in rows[:place] if before.experiment and before.experiment == row.experiment
        )
        for place, row in enumerate(rows)
    }
    plain = [predict_row(row, earlier[place]) for place, row in enumerate(rows)]
    errors = [_errors(row, figures, known) for row, figures in zip(rows, plain, strict=True)]
    families = [(row.model, row.device.gpu_type) for row in rows]
    judged = []
    for place, row in enumerate(rows):
        others = [error for error, family in zip(errors, families, strict=True) if family != families[place]]
        change = Correction(
            math.exp(fmean(step for step, _ in others)), math.exp(fmean(first for _, first in others))
        )
        beside = None
        if earlier[place]:
            step, first = errors[rows.index(earlier[place][0])]
            beside = predict_row(
                row, earlier[place], Correction(math.exp(step), math.exp(first), rows=1), intervals=False
            )
        judged.append(
            Judged(
                row,
                earlier[place],
                plain[place],
                predict_row(row, earlier[place], intervals=False, constants=PEAKS),
                predict_row(row, earlier[place], change),
                beside,
            )
        )
    return judged


def _errors(row: ServingRow, figures: RowFigures, constants: EngineConstants) -> tuple[float, float]:
    """Logarithms of measured over predicted: time per token, and first token beyond that."""
    measured, predicted = (time_per_token(row, of, constants) for of in (row.figures, figures.values))
    first = figures.values["ttft_mean_ms"]
    if measured is None or predicted is None or first is None:
        raise ValueError(f"line {row.line} has no measured time per token")
    step = math.log(measured / predicted)
    return step, math.log(row.figures["ttft_mean_ms"] / first) - step if figures.keeps_up else 0.0


def error(row: ServingRow, figures: RowFigures, name: str) -> float:
    """|predicted - measured| / measured."""
    predicted = figures.values[name]
    if predicted is None:
        raise ValueError(f"line {row.line} has no predicted {name}")
    return abs(predicted / row.figures[name] - 1)


def inside(row: ServingRow, figures: RowFigures, name: str) -> bool:
    """Whether the interval of a mean holds what was measured."""
    low, high = (figures.intervals.get(f"{name}_mean_{end}_ms") for end in ("low", "high"))
    return low is not None and high is not None and low <= row.figures[f"{name}_mean_ms"] <= high


def line(title: str, pairs: Sequence[tuple[ServingRow, RowFigures]], *, intervals: bool) -> str:
    """Number of rows, median error of each figure, and how many responses the interval holds."""
    shares = [f"{100 * median(error(row, of, name) for row, of in pairs):.1f} %" for name in JUDGED]
    held = sum(inside(row, of, "e2e") for row, of in pairs)
    return f"| {title} | {len(pairs)} | {' | '.join(shares)} | {f'{held} of {len(pairs)}' if intervals else '-'} |"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, help="only so many of each file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        judged = judge(measured_rows(Path(folder), options.rows))
    heads = (*TITLES, "responses inside")
    print(f"| median error of | rows | {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) + 1)}")
    print(line("peaks alone", [(item.row, item.peaks) for item in judged], intervals=False))
    print(line("from sizes", [(item.row, item.plain) for item in judged], intervals=True))
    print(line("family left out", [(item.row, item.left_out) for item in judged], intervals=True))
    later = [(item.row, item.beside) for item in judged if item.beside is not None]
    if later:
        print(line("first stage known", later, intervals=False))
    print(f"\n| row | {' | '.join(TITLES)} |\n|---|{'---:|' * len(TITLES)}")
    for item in judged:
        cells = []
        for name in JUDGED:
            predicted, measured = item.plain.values[name], item.row.figures[name]
            cells.append(f"{predicted:,.4g} for {measured:,.4g}")
        row = item.row
        load = "log" if row.requests is not None else f"{row.rate_rps:g}/s"
        parallel = f" x{row.device.tensor_parallel}" if row.device.tensor_parallel > 1 else ""
        print(
            f"| {row.model.rpartition('/')[2]}, {row.device.gpu_type}{parallel}, {load} | {' | '.join(cells)} |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
