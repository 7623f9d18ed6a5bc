"""`measure --endpoint`: open-loop load on an OpenAI-compatible endpoint, as rows of measured serving."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core import files
from torchsplit_core.cli.arguments.outputs import OutputFile
from torchsplit_core.cli.common import with_progress
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.limits import LARGEST_WHOLE, check_name, check_number, check_whole

if TYPE_CHECKING:
    from torchsplit_core.serving.llm_endpoint.measurement import EndpointLoad
    from torchsplit_core.values.simulation.request import Arrivals

LONGEST_S = 86_400.0
"""Longest stage of a measurement."""
MOST_TOKENS = 10_000_000
MOST_STAGES = 100
_COUNTS = {
    "tp": "GPUs of an engine (tensor parallel; default 1)",
    "dp": "engines that share the load (default 1)",
    "max_num_seqs": "most sequences of a step",
    "max_num_batched_tokens": "most tokens of a step",
    "max_model_len": "longest prompt and output together",
    "kv_blocks": "blocks of its KV cache",
    "cpu_kv_blocks": "those in host memory",
    "block_tokens": "tokens of a block",
}
_TEXTS = {
    "gpu": ("TYPE", "its GPU type"),
    "precision": ("NAME", "of its weights: bf16, fp16, fp8, …"),
    "engine": ("TEXT", "name and version, where the endpoint does not tell"),
    "experiment": (
        "NAME",
        "rows of one name are stages on an engine that runs on (default: model and time)",
    ),
    "workload": ("TEXT", "what the load stands for"),
    "config": ("FILE", "the model's config.json, where its name says too little"),
}
"""Columns of a row that the user knows, with their meaning."""


def add_endpoint_options(parser: argparse.ArgumentParser) -> None:
    """Add what `measure --endpoint` takes beside --arrivals, --load, --duration-s and --seed."""
    group = parser.add_argument_group("an endpoint in place of a plan")
    group.add_argument(
        "--endpoint",
        metavar="URL",
        help="of an OpenAI-compatible server, of its /v1, or of a path such as /v1/chat/completions",
    )
    group.add_argument("--model", metavar="NAME", help="the model as the endpoint names it")
    group.add_argument(
        "--rate",
        metavar="R[,R…]",
        help="requests/s; several are stages one after the other, --duration-s each",
    )
    group.add_argument("--prompt", type=int, metavar="N", help="tokens of a prompt, about")
    group.add_argument("--requests", type=int, metavar="N", help="of each stage, in place of --duration-s")
    group.add_argument(
        "--chat", action="store_true", help="ask /v1/chat/completions (default: /v1/completions)"
    )
    group.add_argument("--key-env", metavar="NAME", help="the environment variable that has the key")
    group.add_argument(
        "--timeout-s", type=float, metavar="S", help="longest time without a byte of an answer (default 120)"
    )
    group.add_argument(
        "--requests-out", action=OutputFile, metavar="FILE",
        help="write each request's arrival, tokens, first and last token here (several stages: FILE-0, FILE-1, …)",
    )  # fmt: skip
    columns = parser.add_argument_group("columns of the rows, where you know them")
    for name, text in _COUNTS.items():
        columns.add_argument(_option(name), type=int, metavar="N", help=text)
    share = "share of a GPU's memory that it takes"
    columns.add_argument("--gpu-memory-utilization", type=float, metavar="SHARE", help=share)
    for name, (metavar, text) in _TEXTS.items():
        columns.add_argument(_option(name), metavar=metavar, help=text)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def given_endpoint_options(options: argparse.Namespace) -> list[str]:
    """The options for an endpoint that were given."""
    names = (
        "model", "rate", "prompt", "requests", "chat", "key_env", "timeout_s", "requests_out",
        *_COUNTS, "gpu_memory_utilization", *_TEXTS,
    )  # fmt: skip
    return [_option(name) for name in names if getattr(options, name) not in (None, False)]


def measure_endpoint(options: argparse.Namespace) -> int:
    """Measure the endpoint; write rows as CSV (or JSON), and a table to standard error."""
    given = {"--model": options.model, "--rate": options.rate, "--prompt": options.prompt}
    given["--output"] = options.output_tokens
    for name, value in given.items():
        if value is None:
            text = "the model's name" if name == "--model" else "requests/s" if name == "--rate" else "tokens"
            raise InputFault(name, "is missing, and --endpoint needs it", f"Give {name}: {text}.")
    from torchsplit_core.serving.llm_endpoint import address, measurement, rows
    from torchsplit_core.tables.write_csv import rows_csv

    timeout_s = address.DEFAULT_TIMEOUT_S if options.timeout_s is None else options.timeout_s
    check_number("--timeout-s", timeout_s, positive=True)
    check_name("--model", options.model)
    endpoint = address.parse_endpoint(
        options.endpoint, options.model, chat=options.chat, key_env=options.key_env, timeout_s=timeout_s
    )
    settings = _columns(options)
    load = _load(options)
    now = datetime.now(UTC)
    settings.setdefault("experiment", f"{options.model} {now:%Y-%m-%dT%H:%M:%SZ}")
    measured = with_progress(
        lambda progress: measurement.measure_endpoint(
            endpoint, load, settings, f"torchsplit measure, {now:%Y-%m-%d}", progress
        )
    )
    if options.requests_out:
        for number, (stage, row) in enumerate(zip(measured.stages, measured.rows, strict=True)):
            row["requests"] = _numbered(options.requests_out, number if len(measured.rows) > 1 else None)
            requests = rows_csv(rows.REQUEST_COLUMNS, rows.request_rows(stage, load.prompt_tokens))
            files.replace_file(Path(row["requests"]), requests)
    text = rows_csv(rows.COLUMNS, measured.rows)
    if options.output:
        files.replace_file(Path(options.output), text)
    if options.json:
        sys.stdout.write(json.dumps(list(measured.rows), indent=1) + "\n")
    elif not options.output:
        sys.stdout.write(text)
    for warning in measured.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"measured at {endpoint.url}, in ms from when a request was due:", file=sys.stderr)
    print(rows.table_text(measured.stages, measured.figures), file=sys.stderr)
    return 0


def _numbered(path: str, stage: int | None) -> str:
    """The file of a stage: FILE-0.csv and so on where there are several."""
    return path if stage is None else str(Path(path).with_stem(f"{Path(path).stem}-{stage}"))


def _load(options: argparse.Namespace) -> EndpointLoad:
    from torchsplit_core.serving.llm_endpoint.measurement import EndpointLoad
    from torchsplit_core.serving.llm_endpoint.open_loop import MOST_REQUESTS, load_stage

    check_whole("--prompt", options.prompt, least=1, most=MOST_TOKENS)
    check_whole("--output", options.output_tokens, least=1, most=MOST_TOKENS)
    check_whole("--seed", options.seed)
    check_number("--duration-s", options.duration_s, positive=True)
    check_number("--load", options.load, positive=True)
    if options.duration_s > LONGEST_S:
        problem = f"is {options.duration_s:g}, above the longest stage, {LONGEST_S:g} s"
        raise InputFault("--duration-s", problem, "Measure for less time.")
    if options.requests is not None:
        check_whole("--requests", options.requests, least=1, most=MOST_REQUESTS)
    rates = _rates(options.rate)
    if len(options.arrivals) > 1:
        problem = f"is given {len(options.arrivals)} times, and an endpoint has one model"
        raise InputFault("--arrivals", problem, "Give it once.")
    kind = options.arrivals[0] if options.arrivals else "poisson"
    stages = tuple(
        load_stage(
            _arrivals(kind, rate * options.load), rate * options.load, options.duration_s, options.requests,
            options.seed + number,
        )
        for number, rate in enumerate(rates)
    )  # fmt: skip
    return EndpointLoad(stages, options.prompt, options.output_tokens, options.seed)


def _rates(text: str) -> list[float]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_STAGES:
        raise InputFault(
            "--rate", f"has {len(parts)} stages, more than {MOST_STAGES}", "Measure in several runs."
        )
    rates = []
    for part in parts:
        try:
            rates.append(float(part))
        except ValueError:
            raise InputFault(
                "--rate", f"{quoted(part)} is no number", "Write for example --rate 2 or --rate 2,4,8."
            ) from None
        check_number("--rate", rates[-1], positive=True)
    return rates


def _arrivals(kind: str, rate_rps: float) -> Arrivals:
    from torchsplit_core.values import TraceArrivals
    from torchsplit_core.values.simulation.arrivals_text import parse_arrivals

    if kind.lower().endswith(".csv"):
        from torchsplit_core.tables.arrival_times import read_arrival_times

        tables = read_arrival_times(kind)
        return TraceArrivals(next(iter(tables.values())))
    return parse_arrivals(kind, rate_rps, "--arrivals")


def _columns(options: argparse.Namespace) -> dict[str, str]:
    """The columns that the user gave. Raises InputFault."""
    columns = {}
    for name in _COUNTS:
        if (value := getattr(options, name)) is not None:
            check_whole(_option(name), value, least=0 if name == "cpu_kv_blocks" else 1, most=LARGEST_WHOLE)
            columns[name] = str(value)
    if (share := options.gpu_memory_utilization) is not None:
        if not 0 < share <= 1:
            problem = f"is {share:g}, outside 0 to 1"
            raise InputFault(
                "--gpu-memory-utilization",
                problem,
                "Give the share as the engine was started with, for example 0.9.",
            )
        columns["gpu_memory_utilization"] = f"{share:g}"
    for name in _TEXTS:
        if (text := getattr(options, name)) is not None:
            check_name(_option(name), text)
            columns[name] = text
    if options.config is not None and not Path(options.config).is_file():
        raise InputFault("--config", f"there is no file {quoted(options.config)}", "Check the path.")
    return columns
