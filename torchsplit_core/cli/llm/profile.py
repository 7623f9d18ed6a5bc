"""The command profile-llm: an engine on cores of this host measured as points of plans."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from torchsplit_core import workflow
from torchsplit_core.cli.arguments.outputs import OutputFile
from torchsplit_core.cli.common import Command, with_progress, write_outcome
from torchsplit_core.cli.llm.request_llms import OUTPUT_TOKENS, PROMPT_TOKENS, lengths
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.limits import check_number, check_whole

if TYPE_CHECKING:
    from torchsplit_core.engine_plans.engine_figures import EngineRequests
    from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
    from torchsplit_core.values import LlmPoint

LONGEST_S = 3600.0
MOST_CORES_NAMED = 16
"""Numbers of cores of one call."""


def add_profile_llm_command(command: Command) -> None:
    """Add profile-llm to the command line through its `command(name, run)`."""
    parser = command("profile-llm", _profile_llm)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a decoder's folder (config.json, weights as safetensors, tokenizer.json), or its config.json, whose "
        "weights are then random",
    )
    parser.add_argument(
        "--device", default="cpu:1c", metavar="cpu:1c,cpu:2c", help="numbers of cores (default cpu:1c)"
    )
    for option, name, default, text in (
        ("--prompt", "prompt", PROMPT_TOKENS, "mean tokens of a prompt"),
        ("--output", "output_tokens", OUTPUT_TOKENS, "mean tokens of an answer"),
        ("--length-cv", "length_cv", 0.0, "standard deviation over mean of both lengths"),
        ("--percentile", "percentile", 95.0, "of the requests that keep each limit"),
        ("--duration-s", "duration_s", 20.0, "of each load"),
    ):
        words = f"{text} (default {default:g})"
        parser.add_argument(option, dest=name, type=float, default=default, metavar="N", help=words)
    parser.add_argument("--max-ttft", type=float, metavar="MS", help="to the first token (default: no limit)")
    parser.add_argument(
        "--max-tpot", type=float, metavar="MS", help="for each further token (default: no limit)"
    )
    for option, count, text in (
        ("--max-num-seqs", 32, "most sequences of a step"),
        ("--max-num-batched-tokens", 512, "most tokens of a step"),
        ("--kv-blocks", 1024, "blocks of 16 tokens of its KV cache"),
        ("--seed", 0, "of arrivals, lengths and random weights"),
    ):
        parser.add_argument(option, type=int, default=count, metavar="N", help=f"{text} (default {count})")
    parser.add_argument(
        "--max-model-len",
        type=int,
        metavar="N",
        help="longest prompt and answer together (default: what model and cache allow)",
    )
    # Its long form elsewhere, --output, is the answer's length here.
    parser.add_argument("-o", dest="output", action=OutputFile, metavar="FILE", help="write the points here")
    parser.add_argument("--json", action="store_true", help="print the points to standard output")


def _profile_llm(options: argparse.Namespace) -> int:
    core_counts, requests, settings = _cores(options.device), _requests(options), _settings(options)
    points = with_progress(
        lambda progress: workflow.profile_llm(settings, requests, core_counts, options.duration_s, progress)
    )
    write_outcome(points, options)
    for point in points.points:
        print(point_text(point, points.percentile), file=sys.stderr)
    return 0


def point_text(point: LlmPoint, percent: float) -> str:
    """One line on a point."""
    times = [
        f"p{percent:g} of {name} {value:.4g} ms"
        for name, value in (("TTFT", point.ttft_ms), ("TPOT", point.tpot_ms))
        if value is not None
    ]
    return f"{point.profile}: {point.throughput_rps:.4g} requests/s{': ' if times else ''}{', '.join(times)}"


def _cores(text: str) -> list[int]:
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"cpu:([1-9]\d{0,2})c", part.strip())
        if match is None:
            remedy = "Write for example cpu:1c,cpu:2c; on a GPU measure vLLM with measure --endpoint."
            raise InputFault("--device", f"{quoted(part)} is not a number of cores", remedy)
        counts.append(int(match[1]))
    if len(set(counts)) < len(counts) or len(counts) > MOST_CORES_NAMED:
        problem = f"names {len(counts)} numbers of cores, {len(set(counts))} of them different"
        raise InputFault("--device", problem, f"Name each once, {MOST_CORES_NAMED} at most.")
    return counts


def _requests(options: argparse.Namespace) -> EngineRequests:
    from torchsplit_core.engine_plans.engine_figures import EngineRequests
    from torchsplit_core.values import PoissonArrivals

    for name in ("prompt", "output_tokens", "length_cv", "max_ttft", "max_tpot", "duration_s", "percentile"):
        if (value := getattr(options, name)) is not None:
            option = "--output" if name == "output_tokens" else f"--{name.replace('_', '-')}"
            check_number(option, value, positive=name != "length_cv")
    if options.percentile >= 100 or options.duration_s > LONGEST_S:
        name, most = ("percentile", 100) if options.percentile >= 100 else ("duration-s", LONGEST_S)
        problem = f"is {getattr(options, name.replace('-', '_')):g}, and {most:g} is too much"
        raise InputFault(f"--{name}", problem, "Give less.")
    check_whole("--seed", options.seed)
    return EngineRequests(
        lengths("--prompt", options.prompt, options.length_cv),
        lengths("--output", options.output_tokens, options.length_cv),
        None,
        options.max_ttft,
        options.max_tpot,
        options.percentile,
        PoissonArrivals(1.0),
        options.seed,
    )


def _settings(options: argparse.Namespace) -> LlmEngineSettings:
    from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings, check_engine_settings

    settings = LlmEngineSettings(
        options.model,
        "llm",
        options.max_num_seqs,
        options.max_num_batched_tokens,
        options.kv_blocks,
        max_model_len=options.max_model_len,
        seed=options.seed,
    )
    check_engine_settings(settings)
    return settings
