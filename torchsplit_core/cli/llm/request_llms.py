"""Options of `request` that add LLMs: their sizes, requests, limits, and what was measured of them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchsplit_core.cli.arguments.numbers_by_name import numbers_by_name
from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted, suggestion

if TYPE_CHECKING:
    from torchsplit_core.values import LlmPoint, PlanModel, TokenCounts
    from torchsplit_core.values.llm.decoder import DecoderSizes

PROMPT_TOKENS, OUTPUT_TOKENS = 1024, 256
"""Mean lengths where none are given, as `size` has them."""


def add_llm_options(parser: argparse.ArgumentParser) -> None:
    """Add them; `--output` of an LLM is among the options of the output file."""
    parser.add_argument(
        "--llm",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="an LLM: a published one (llama-3.1-8b), or a config.json; the options below are NAME=N, or N for all",
    )
    for option, text in (
        ("--rate", "requests/s (default 1)"),
        ("--prompt", f"mean tokens of a prompt (default {PROMPT_TOKENS})"),
        ("--length-cv", "standard deviation over mean of both lengths (default 0: all alike)"),
        ("--max-ttft", "ms to the first token that 95 %% of the requests keep (default: no limit)"),
        ("--max-tpot", "ms for each further token (default: no limit)"),
    ):
        parser.add_argument(option, action="append", default=[], metavar="[NAME=]N", help=text)
    parser.add_argument(
        "--known",
        metavar="ROWS.csv",
        help="measured rows of estimate-serving: points of the LLMs they are of",
    )
    parser.add_argument(
        "--points",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="points of profile-llm: engines on cores of a host, which is served from the LLM's folder or config.json",
    )


def llm_models(options: argparse.Namespace) -> tuple[PlanModel, ...]:
    """The LLMs of the options, with the demand of `--rate`. Raises InputFault."""
    from torchsplit_core.values import LlmModel, PlanModel

    # A comma is part of a path unless NAME= follows it.
    entries = [entry for text in options.llm for entry in re.split(r",(?=[^,=/]+=)", text)]
    named = dict(map(_name_and_model, entries))
    if len(named) < len(entries):
        raise InputFault("--llm", "names an LLM twice", "Give each a name of its own.")
    rates, prompts, outputs, cvs, ttfts, tpots = (
        _by_name(option, texts, named)
        for option, texts in (
            ("--rate", options.rate), ("--prompt", options.prompt), ("--output", options.output_texts),
            ("--length-cv", options.length_cv), ("--max-ttft", options.max_ttft), ("--max-tpot", options.max_tpot),
        )
    )  # fmt: skip
    files, models = _files_by_name(options.points, named), []
    for name, source in named.items():
        cv = cvs(name) or 0.0
        llm = LlmModel(
            decoder_sizes(source),
            lengths("--prompt", prompts(name) or PROMPT_TOKENS, cv),
            lengths("--output", outputs(name) or OUTPUT_TOKENS, cv),
            max_ttft_ms=ttfts(name),
            max_tpot_ms=tpots(name),
        )
        models.append(PlanModel(name, demand_rps=rates(name) or 1.0, llm=llm, source=_source(source)))
    with_known = _with_known(tuple(models), options.known)
    return tuple(_with_points(model, named[model.name], files) for model in with_known)


def decoder_sizes(source: str) -> DecoderSizes:
    """Those of a config.json, of a folder with one, or of a published LLM. Raises InputFault."""
    from torchsplit_core.cli.tables import read_table
    from torchsplit_core.llm.config import read_config
    from torchsplit_core.llm.published import published_decoder

    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or path.is_file():
        return read_config(read_table(str(path)), str(path))
    return published_decoder(source)


def _source(source: str) -> str | None:
    """What a server loads: a folder, a published model by its name; of a config.json alone that is not known."""
    if Path(source).is_dir():
        return str(Path(source).absolute())
    return None if Path(source).suffix == ".json" else f"hf:{source}" if "/" in source else None


def _name_and_model(text: str) -> tuple[str, str]:
    name, equals, model = text.partition("=")
    if not equals or not name.strip() or not model.strip():
        raise InputFault("--llm", f"{quoted(text)} is not NAME=MODEL", "Write for example chat=llama-3.1-8b.")
    return name.strip(), model.strip()


def _by_name(option: str, texts: Sequence[str], names: dict[str, str]) -> Callable[[str], float | None]:
    """What an option has for a name: its own value, else the one for all, else None."""
    by_name, common = {}, None
    for name, value in numbers_by_name(option, texts, "chat=5", "NAME"):
        if not 0 < value < float("inf"):
            raise InputFault(option, f"is {value:g}, not a finite number above 0", "Give a number above 0.")
        if name and name not in names:
            raise InputFault(option, f"unknown LLM {quoted(name)}", suggestion(name, names, "LLMs"))
        if name:
            by_name[name] = value
        else:
            common = value
    return lambda name: by_name.get(name, common)


def lengths(option: str, mean: float, cv: float) -> TokenCounts:
    """Token counts of this mean; a whole number of tokens each where cv is 0. Raises InputFault."""
    from torchsplit_core.values import ConstantTokens, LognormalTokens

    if cv:
        return LognormalTokens(mean, cv)
    if mean % 1:
        raise InputFault(option, f"is {mean:g}, not a whole number of tokens", "Give a whole number.")
    return ConstantTokens(int(mean))


def _with_known(models: tuple[PlanModel, ...], path: str | None) -> tuple[PlanModel, ...]:
    """The LLMs with the points that measured rows give; a note for each row that gives none."""
    if path is None:
        return models
    from torchsplit_core.cli.tables import read_table
    from torchsplit_core.serving_estimates.known import measured_points

    text, with_points = read_table(path), []
    for model in models:
        assert model.llm is not None
        assert model.llm.config is not None
        points, reasons = measured_points(text, model.llm.config, Path(path).parent, origin=path)
        for reason in reasons:
            print(f"note: {path}: {reason}", file=sys.stderr)
        with_points.append(replace(model, llm=replace(model.llm, points=_best(points, model))))
    return tuple(with_points)


def _files_by_name(texts: Sequence[str], names: Iterable[str]) -> dict[str, list[str]]:
    """The files of points of each LLM; one without a name is of the only LLM. Raises InputFault."""
    files: dict[str, list[str]] = {name: [] for name in names}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals and len(files) == 1:
            (name,), path = files, text
        if name not in files:
            remedy = (
                suggestion(name, files, "LLMs")
                if equals and files
                else "Write NAME=FILE, with --llm NAME=MODEL."
            )
            raise InputFault("--points", f"{quoted(text)} names no LLM of --llm", remedy)
        files[name].append(path)
    return files


def _with_points(model: PlanModel, source: str, files: dict[str, list[str]]) -> PlanModel:
    """The LLM with the points of its files, which are served from where its sizes are read; a note where they were
    measured with other requests."""
    from torchsplit_core import files as contract_files

    llm, paths = model.llm, files[model.name]
    if not paths:
        return model
    assert llm is not None
    points = {(point.gpu_type, point.profile, point.tensor_parallel): point for point in llm.points}
    for path in paths:
        _, measured = contract_files.read_file(path, expected="torchsplit.llm_points")
        points |= {(point.gpu_type, point.profile, point.tensor_parallel): point for point in measured.points}
        differing = [
            name.replace("_", " ")
            for name in ("prompt_tokens", "output_tokens", "max_ttft_ms", "max_tpot_ms", "percentile")
            if getattr(measured, name) != getattr(llm, name)
        ]
        if differing:
            text = f"{path}: {model.name} was measured with other {', '.join(differing)}"
            print(f"note: {text}; its rates and times are those of that measurement", file=sys.stderr)
    return replace(model, llm=replace(llm, points=tuple(points.values())), source=str(Path(source)))


def _best(points: Sequence[LlmPoint], model: PlanModel) -> tuple[LlmPoint, ...]:
    """Of several rows of a place the one of the highest rate that keeps the limits."""
    llm = model.llm
    assert llm is not None
    best: dict[tuple[str, str, int], LlmPoint] = {}
    for point in sorted(points, key=lambda item: item.throughput_rps):
        late = llm.max_ttft_ms is not None and (point.ttft_ms is None or point.ttft_ms > llm.max_ttft_ms)
        slow = llm.max_tpot_ms is not None and (point.tpot_ms is None or point.tpot_ms > llm.max_tpot_ms)
        if not late and not slow:
            best[point.gpu_type, point.profile, point.tensor_parallel] = point
    return tuple(best.values())
