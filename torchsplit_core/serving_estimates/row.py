"""One row of LLM serving, read and checked: the engine, its decoder and its load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from torchsplit_core.llm import (
    EngineConstants,
    EngineDevice,
    check_parallel,
    engine_device,
    published_decoder,
    quantized,
    read_config,
)
from torchsplit_core.serving_estimates.requests_file import RequestList, read_requests, read_text
from torchsplit_core.tables.cell_parsing import CellFault
from torchsplit_core.tables.record_fields import RecordFields
from torchsplit_core.values import InputFault
from torchsplit_core.values.llm.decoder import DecoderSizes, WeightType

FIGURES = (
    "ttft_mean_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_mean_ms", "e2e_mean_ms", "e2e_p90_ms", "e2e_p99_ms",
)  # fmt: skip
"""Columns that are predicted; given ones calibrate other rows."""
REQUIRED = ("model", "gpu", "rate_rps", "question_tokens", "output_tokens")
"""Columns of every table; `config` stands for model and `requests` for the others of a row."""
ESTIMATED = "estimated"
"""How the basis of a predicted row begins."""
MOST_REQUESTS = 20_000
"""Of a stage. Chosen: the simulation of more takes minutes."""
MOST_ENGINES = 1024
_LONGEST = 10**7


@dataclass(frozen=True, slots=True)
class ServingRow:
    """The settings of an engine, and the load of one stage of an experiment.

    `figures` are those given, by their columns (ms). `kv_blocks` None: reckoned. Times are in s, lengths in tokens.
    """

    line: int
    experiment: str
    stage: float
    model: str
    sizes: DecoderSizes
    device: EngineDevice
    engines: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float
    kv_blocks: int | None
    block_tokens: int
    system_prompt_tokens: int
    question_tokens: int
    output_tokens: int
    multi_turn: bool
    users: int
    rate_rps: float
    duration_s: float
    requests: RequestList | None
    reserve_full_prompt: bool
    figures: dict[str, float]

    @property
    def key(self) -> tuple[object, ...]:
        """What rows have in common that calibrate each other."""
        model = self.model.rpartition("/")[2].lower()
        return model, self.device.gpu_type, self.device.profile, self.device.tensor_parallel, self.sizes.dtype

    @property
    def expert_gpus(self) -> int:
        """GPUs over which experts are spread."""
        spread = self.engines if self.sizes.layers_with_experts else 1
        return spread * self.device.tensor_parallel


def read_row(fields: RecordFields, folder: Path, constants: EngineConstants) -> ServingRow:
    """The row of these cells; files that it names stand in `folder` or the current one.

    Raises CellFault for a cell, InputFault for a config, a log or settings that can not be served.
    """
    sizes, model = _sizes(fields, folder)
    device = engine_device(
        fields.name("gpu"),
        profile=fields.text("profile") or None,
        tensor_parallel=_count(fields, "tp", 1),
        constants=constants,
    )
    check_parallel(sizes, device.tensor_parallel)
    device.compute(sizes.dtype)
    limit = _count(fields, "max_model_len", sizes.max_model_len or _LONGEST)
    requests = read_requests(fields.text("requests"), folder) if fields.has("requests") else None
    chats = requests is None
    rate = fields.positive("rate_rps") if chats else 1.0
    row = ServingRow(
        line=fields.record.line,
        experiment=fields.text("experiment"),
        stage=fields.optional("stage") or 0.0,
        model=model,
        sizes=sizes,
        device=device,
        engines=_count(fields, "dp", 1, MOST_ENGINES),
        max_num_seqs=_count(fields, "max_num_seqs", 128),
        max_num_batched_tokens=_count(fields, "max_num_batched_tokens", 2048),
        max_model_len=limit,
        gpu_memory_utilization=_share(fields),
        kv_blocks=_count(fields, "kv_blocks", 0) or None,
        block_tokens=_count(fields, "block_tokens", 16),
        system_prompt_tokens=int(fields.optional("system_prompt_tokens") or 0) if chats else 0,
        question_tokens=fields.count("question_tokens", _LONGEST) if chats else 0,
        output_tokens=fields.count("output_tokens", _LONGEST) if chats else 0,
        multi_turn=fields.word("multi_turn", ("yes", "no"), "no") == "yes",
        users=_count(fields, "users", 1),
        rate_rps=rate,
        duration_s=fields.positive("duration_s") if chats and fields.has("duration_s") else 600.0,
        requests=requests,
        reserve_full_prompt=_reserves(fields.text("engine")),
        figures=_figures(fields),
    )
    _check_lengths(row)
    return row


def _figures(fields: RecordFields) -> dict[str, float]:
    """The measured ones: of a row that this command wrote, those that it had moved."""
    prefix = "given_" if is_estimated(fields.text("basis")) else ""
    return {name: fields.positive(prefix + name) for name in FIGURES if fields.has(prefix + name)}


def is_estimated(basis: str) -> bool:
    """Whether a row's figures are predictions."""
    return basis.startswith(ESTIMATED)


def _sizes(fields: RecordFields, folder: Path) -> tuple[DecoderSizes, str]:
    if fields.has("config"):
        path = fields.text("config")
        sizes = read_config(read_text(path, folder), path)
        model = fields.text("model") or path
    else:
        model = fields.name("model")
        sizes = published_decoder(model)
    precisions = get_args(WeightType)
    kind = fields.word("precision", precisions, sizes.dtype)
    return quantized(sizes, next(item for item in precisions if item == kind)), model


def _count(fields: RecordFields, column: str, otherwise: int, largest: int = _LONGEST) -> int:
    return fields.count(column, largest) if fields.has(column) else otherwise


def _share(fields: RecordFields) -> float:
    share = fields.positive("gpu_memory_utilization") if fields.has("gpu_memory_utilization") else 0.9
    if share > 1:
        raise CellFault(
            f"is {share:g}, more than the whole memory", "Give 1 or less.", "gpu_memory_utilization"
        )
    return share


def _reserves(engine: str) -> bool:
    """Whether a request is admitted only where its whole prompt fits, as vLLM does since 0.18."""
    words = engine.split()
    version = words[-1].split(".") if words and "vllm" in engine.lower() else []
    if len(version) < 2 or not (version[0].isdigit() and version[1].isdigit()):
        return True
    return (int(version[0]), int(version[1])) >= (0, 18)


def _check_lengths(row: ServingRow) -> None:
    prompt = row.system_prompt_tokens + row.question_tokens
    longest = prompt + row.output_tokens
    if row.requests is not None:
        longest = max(
            p + o for p, o in zip(row.requests.prompt_tokens, row.requests.output_tokens, strict=True)
        )
    if longest > row.max_model_len:
        raise InputFault(
            "max_model_len",
            f"is {row.max_model_len}, and prompt and output have {longest} tokens together",
            "Give a longer context, or shorter requests.",
        )
    count = row.rate_rps * row.duration_s if row.requests is None else len(row.requests.arrival_s)
    if count > MOST_REQUESTS:
        raise InputFault(
            "rate_rps" if row.requests is None else "requests",
            f"{count:,.0f} requests are more than the {MOST_REQUESTS:,} of a stage",
            "Give a shorter duration_s." if row.requests is None else "Give a part of the log.",
        )
