"""The command size: how many of which GPUs, slices or groups serve an LLM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core.cli.arguments.outputs import OutputFile
from torchsplit_core.cli.common import Command, with_progress
from torchsplit_core.values import InputFault

if TYPE_CHECKING:
    from torchsplit_core.sizing.request import OfferedGpu, SizingRequest
    from torchsplit_core.sizing.size import SizingTable
    from torchsplit_core.values.llm.decoder import DecoderSizes

MOST_SHOWN = 8
"""Rows of the text table; CSV and JSON have all."""
SHOWN_REASONS = 5
"""Most rows that calibrate nothing whose reason is printed."""
PRECISIONS = ("bf16", "fp16", "fp8", "int8", "int4")
KV_PRECISIONS = ("bf16", "fp16", "fp8", "int8")


def add_size_command(command: Command) -> None:
    """Add size to the command line through its `command(name, run)`."""
    parser = command("size", _size)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a published LLM (llama-3.1-8b, meta-llama/Llama-3.1-8B-Instruct), or a config.json",
    )
    parser.add_argument(
        "--gpus",
        action="append",
        default=[],
        metavar="TYPE,…",
        help="GPU types, whole, in MIG slices and in groups of 2, 4 and 8; TYPE:whole without slices; @cost=N behind a "
        "type is its price an hour (default: eight types of data centres)",
    )
    parser.add_argument(
        "--rate", type=float, default=1.0, metavar="RPS", help="requests/s, Poisson (default 1)"
    )
    parser.add_argument(
        "--prompt", type=int, default=1024, metavar="TOKENS", help="of a prompt (default 1024)"
    )
    parser.add_argument(
        "--output",
        dest="output_tokens",
        type=int,
        default=256,
        metavar="TOKENS",
        help="of an answer (default 256)",
    )
    parser.add_argument(
        "--cached",
        type=int,
        default=0,
        metavar="TOKENS",
        help="of the prompt that the prefix cache holds (default 0)",
    )
    parser.add_argument(
        "--length-cv",
        type=float,
        default=0.0,
        metavar="CV",
        help="standard deviation over mean of both lengths (default 0)",
    )
    parser.add_argument(
        "--max-ttft", type=float, metavar="MS", help="time to the first token (default: no limit)"
    )
    parser.add_argument(
        "--max-tpot", type=float, metavar="MS", help="time per further token (default: no limit)"
    )
    parser.add_argument(
        "--percentile",
        type=float,
        default=95.0,
        metavar="P",
        help="of the requests that keep each limit (default 95)",
    )
    parser.add_argument(
        "--known",
        metavar="ROWS.csv",
        help="measured rows (of estimate-serving) that calibrate those of their GPU and number of GPUs",
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="of the weights (default: the model's)")
    parser.add_argument("--kv-precision", choices=KV_PRECISIONS, help="of keys and values (default: 16 bits)")
    parser.add_argument(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="longest prompt and answer together (default: the model's)",
    )
    parser.add_argument(
        "--max-num-seqs", type=int, default=128, metavar="N", help="most sequences of a step (default 128)"
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="most tokens of a step (default 2048)",
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="of the memory that an engine takes (default 0.9)",
    )
    parser.add_argument(
        "--requests", type=int, default=1000, metavar="N", help="of each simulation, at least (default 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print all rows as CSV to standard output")
    form.add_argument(
        "--json", action="store_true", help="print all rows as JSON, each with its engine for a simulation"
    )
    parser.add_argument(
        "--save-request",
        action=OutputFile,
        metavar="FILE",
        help="write the simulation request of the first row: one engine at its rate",
    )
    # Its long form elsewhere, --output, is the answer's length here.
    parser.add_argument(
        "-o", dest="output", action=OutputFile, metavar="FILE", help="write all rows here, as CSV"
    )


def _size(options: argparse.Namespace) -> int:
    from torchsplit_core.files import replace_file
    from torchsplit_core.sizing.size import size

    request = _request(options)
    whole = options.csv or options.json or options.output is not None
    table = with_progress(
        lambda progress: size(request, most_simulated=None if whole else MOST_SHOWN, progress=progress)
    )
    for reason in table.left_out:
        print(f"note: left out: {reason}", file=sys.stderr)
    if options.output is not None or options.csv:
        from torchsplit_core.sizing.table import size_csv

        text = size_csv(table)
        if options.output is not None:
            replace_file(Path(options.output), text)
        if options.csv:
            sys.stdout.write(text)
    if options.json:
        from torchsplit_core.sizing.table import size_json

        sys.stdout.write(size_json(table))
    elif not options.csv:
        from torchsplit_core.cli.llm.size_text import table_text

        sys.stdout.write(table_text(table))
    if options.save_request is not None:
        _save_request(table, options.save_request)
    if options.csv or options.json:
        from torchsplit_core.sizing.summary import headline

        print(headline(table), file=sys.stderr)
    return 0 if table.reaches else 3


def _save_request(table: SizingTable, path: str) -> None:
    from torchsplit_core.files import write_file
    from torchsplit_core.sizing.engine_row import simulation_request

    row = table.rows[0]
    if row.engine is None or not row.rate_rps:
        problem = "has nothing to write: no engine serves any rate within the limits"
        raise InputFault("--save-request", problem, "Raise the limits, or leave the option out.")
    write_file(simulation_request(table.request, row.engine, row.rate_rps, row.requests or 1), path)


def _request(options: argparse.Namespace) -> SizingRequest:
    from torchsplit_core.sizing.request import EngineSettings, SizingRequest, TokenLimits

    sizes = _sizes(options)
    return SizingRequest(
        model=_name(options.model),
        sizes=sizes,
        gpus=_gpus(options.gpus),
        rate_rps=options.rate,
        prompt_tokens=options.prompt,
        output_tokens=options.output_tokens,
        cached_tokens=options.cached,
        length_cv=options.length_cv,
        limits=TokenLimits(options.max_ttft, options.max_tpot, options.percentile),
        settings=EngineSettings(
            options.max_num_seqs,
            options.max_num_batched_tokens,
            options.gpu_memory_utilization,
            options.max_model_len,
        ),
        requests=options.requests,
        seed=options.seed,
        known_factors=_known_factors(options.known, sizes),
    )


def _known_factors(path: str | None, sizes: DecoderSizes) -> Mapping[tuple[str, int], float]:
    if path is None:
        return {}
    from torchsplit_core.cli.tables import read_table
    from torchsplit_core.serving_estimates.known import known_factors

    factors, reasons = known_factors(read_table(path), sizes, Path(path).parent, origin=path)
    for reason in reasons[:SHOWN_REASONS]:
        print(f"note: {path}: {reason}", file=sys.stderr)
    if len(reasons) > SHOWN_REASONS:
        print(f"note: {path}: {len(reasons) - SHOWN_REASONS} rows more play no part", file=sys.stderr)
    for (gpu_type, gpus), factor in factors.items():
        print(
            f"known rows: steps of {gpus} × {gpu_type} take {factor:.3g} times those from sizes",
            file=sys.stderr,
        )
    return factors


def _sizes(options: argparse.Namespace) -> DecoderSizes:
    from torchsplit_core.cli.tables import read_table
    from torchsplit_core.llm.config import read_config
    from torchsplit_core.llm.published import published_decoder, quantized

    path = Path(options.model)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or path.is_file():
        sizes = read_config(read_table(str(path)), str(path))
    else:
        sizes = published_decoder(options.model)
    if options.precision is not None:
        sizes = quantized(sizes, options.precision)
    return sizes if options.kv_precision is None else replace(sizes, kv_dtype=options.kv_precision)


def _name(model: str) -> str:
    """A name for messages and simulations: of a config.json its folder's."""
    path = Path(model)
    if path.suffix == ".json":
        return path.absolute().parent.name if path.name == "config.json" else path.stem
    return model


def _gpus(texts: list[str]) -> tuple[OfferedGpu, ...]:
    from torchsplit_core.planning.request.fleet_text import parse_fleet
    from torchsplit_core.sizing.request import DEFAULT_TYPES, OfferedGpu

    if not texts:
        return tuple(OfferedGpu(name) for name in DEFAULT_TYPES)
    offered: dict[str, OfferedGpu] = {}
    for entry in parse_fleet(",".join(texts)):
        if entry.count > 1 or entry.id or entry.node or entry.layouts:
            raise InputFault(
                "--gpus",
                f"{entry.type} is given with a count, an id, a node or layouts, which a sizing finds or leaves out",
                f"Write {entry.type} alone, or with its price: {entry.type}@cost=2.5.",
            )
        if entry.type in offered:
            raise InputFault("--gpus", f"{entry.type} is given twice", "Leave one of them out.")
        offered[entry.type] = OfferedGpu(entry.type, entry.cost, sliced=entry.mig is not False)
    return tuple(offered.values())
