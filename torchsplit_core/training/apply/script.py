"""A candidate of a strategy as the text of a Python file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from textwrap import wrap

from torchsplit_core.model_source import ModelSource, parse_source
from torchsplit_core.training.apply import decoder, divide, source
from torchsplit_core.training.apply.imports import imports_of
from torchsplit_core.training.apply.refused import check_written
from torchsplit_core.training.strategy.words import choice_words
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest
from torchsplit_core.values.training import SHARDED

WIDE = 110
"""Characters of a line."""
SHARD_WORDS = {
    "zero2": "Gradients and optimizer states divided over the copies, weights gathered between the passes.",
    "fsdp": "Weights, gradients and optimizer states divided over the copies, gathered block by block.",
    "hsdp": "States divided over the copies of a node and repeated over nodes.",
}


@dataclass(frozen=True, slots=True)
class Traced:
    """Of a model of kind source: its blocks, and those with which a stage of the pipeline begins."""

    blocks: tuple[str, ...]
    starts: tuple[str, ...] = ()


def script(
    request: StrategyRequest,
    candidate: StrategyCandidate,
    traced: Traced | None = None,
    *,
    trust: bool = False,
) -> str:
    """The file. Raises InputFault for what it would not do as the strategy says."""
    found: ModelSource | None = None
    if isinstance(request.model, SourceSizes):
        found = parse_source(request.model.source, trust=trust)
    check_written(request, candidate)
    return _Script(request, candidate, found, traced or Traced(())).text()


@dataclass(frozen=True, slots=True)
class _Script:
    request: StrategyRequest
    one: StrategyCandidate
    source: ModelSource | None
    traced: Traced

    @property
    def half(self) -> bool:
        return self.request.training.precision == "bf16"

    @property
    def gathered(self) -> bool:
        return self.one.shard in SHARDED

    @property
    def tied(self) -> bool:
        model = self.request.model
        return not isinstance(model, SourceSizes) and model.tied_embeddings and self.one.pipeline == 1

    @property
    def ddp(self) -> bool:
        """Whether torch's DistributedDataParallel sums the gradients, and not the file itself."""
        return not self.gathered and self.one.tensor == self.one.pipeline == 1

    def text(self) -> str:
        """Head, model, division, main; only what the strategy needs."""
        one = self.one
        body = self._model()
        body += divide.START
        if one.tensor > 1:
            model = self.request.model
            assert not isinstance(model, SourceSizes)
            body += decoder.tensor_text(
                model.transformer(), tied=self.tied, sequence_parallel=one.sequence_parallel
            )
        if one.recompute == "full":
            body += divide.RECOMPUTE_FULL
        elif one.recompute == "selective":
            kept = ("every second product and attention", "seen[context.is_recompute] % 2 == 0")
            if self.source is not None:
                kept = ("products and attention", "True")
            body += divide.RECOMPUTE_SELECTIVE.replace("{kept}", kept[0]).replace("{every}", kept[1])
        if self.gathered:
            body += self._shard()
        elif not self.ddp:
            body += divide.AVERAGE
        body += self._pipeline_main() if one.pipeline > 1 else self._plain_main()
        return f"{self._head()}{imports_of(body + divide.END)}{self._constants()}{body}{divide.END}"

    def _head(self) -> str:
        one = self.one
        a_node = self.request.fleet[0].gpus_per_node
        nodes = -(-one.devices // a_node)
        run = f"torchrun --nproc-per-node {min(a_node, one.devices)}"
        if nodes > 1:
            run = f"torchrun --nnodes {nodes} --nproc-per-node {a_node} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
        said = f"A training step divided by a strategy: {choice_words(one.choices)}."
        fitted = "\n".join(wrap(said, WIDE - 3))
        return (
            f'"""{fitted}\n\n'
            f"Reckoned {one.seconds_per_step:.4g} s a step and {one.memory_gib.total:.3g} GiB on the fullest device "
            f"({one.basis}, untested on hardware).\n"
            "Written by TorchSplit; it is yours to edit: data, loss and learning rate are placeholders.\n\n"
            f"    {run} THIS_FILE.py\n\n"
            "Without a GPU it runs on gloo. One process divides nothing and has the same loss, to compare with.\n"
            '"""\n\nfrom __future__ import annotations\n\n'
        )

    def _constants(self) -> str:
        one, training = self.one, self.request.training
        lines = [
            f"TENSOR, PIPELINE = {one.tensor}, {one.pipeline}  # the rest of the processes are copies: data",
            f"GLOBAL_BATCH, MICRO_BATCH = {training.global_batch}, {one.micro_batch}",
            "SEED, RATE = 0, 1e-4",
        ]
        if one.interleave > 1:
            lines.append(f"CHUNKS = {one.interleave}  # of each stage")
        if training.precision == "tf32":
            lines.append('torch.set_float32_matmul_precision("high")')
        return "\n" + "\n".join(lines) + "\n"

    def _model(self) -> str:
        if self.source is not None:
            text = source.model_text(self.source, self.traced.blocks)
            if self.one.pipeline > 1:
                text = text.replace(
                    "\n\ndef build()", f"\nSTARTS = {json.dumps(self.traced.starts)}\n"
                    '"""Blocks with which the second stage and those after it begin."""\n\n\ndef build()', 1,
                )  # fmt: skip
            return text
        model = self.request.model
        assert not isinstance(model, SourceSizes)
        return decoder.model_text(model.transformer(), tied=self.tied)

    def _shard(self) -> str:
        one = self.one
        policy = "MixedPrecisionPolicy()"
        if self.half:
            policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
        offload = ""
        if one.offload == "parameters":
            offload = (
                ",\n                    offload_policy=CPUOffloadPolicy(pin_memory=torch.cuda.is_available())"
            )
        reshard = "True" if one.shard != "zero2" and one.pipeline == 1 else "False"
        return divide.SHARD.format(
            words=SHARD_WORDS[one.shard],
            replicas=divide.REPLICAS if one.shard == "hsdp" else divide.ONE_GROUP,
            policy=policy,
            reshard=reshard,
            offload=offload,
        )

    def _wraps(self, blocks: str, model: str, indent: str) -> list[str]:
        """Recomputation around each block, then sharding, inside out."""
        lines = []
        if self.one.recompute != "none":
            lines += [f"{indent}for name in {blocks}:",
                      f"{indent}    {model}.set_submodule(name, run_again({model}.get_submodule(name)))"]  # fmt: skip
        if self.gathered:
            lines.append(f"{indent}units = [{model}.get_submodule(name) for name in {blocks}]")
            lines.append(f"{indent}shard(units, {model}, mesh)")
        return lines

    def _blocks(self, model: str) -> str:
        if self.source is not None:
            return "BLOCKS"
        return f'[f"layers.{{place}}" for place in range(len({model}.layers))]'

    def _plain_main(self) -> str:
        one = self.one
        build = "build()" if self.source is not None else "Decoder()"
        lines = [f"    model: nn.Module = {build}.to(device)"]
        if one.tensor > 1:
            lines += ['    if mesh["tensor"].size() > 1:', '        over_tensor(model, mesh["tensor"])']
        lines += self._wraps(self._blocks("model"), "model", "    ")
        if self.ddp:
            lines.append("    model = DistributedDataParallel(model, gradient_as_bucket_view=True)")
        contexts = ["torch.autocast(device.type, torch.bfloat16)"] if self.half and not self.gathered else []
        if self.ddp:
            contexts.append("nullcontext() if last else model.no_sync()")
        call = "model(tokens), target" if self.source is None else "model(*args, **kwargs)"
        # Gradients that the file sums itself, once a step.
        finish = "        average_gradients(model, mesh)\n" if not self.ddp and not self.gathered else ""
        text = divide.PLAIN_MAIN.format(
            build="\n".join(lines),
            optimizer=self._optimizer("model.parameters()"),
            unpack="tokens, target" if self.source is None else "args, kwargs",
            contexts=", ".join(contexts) or "nullcontext()",
            call=call,
            finish=finish,
        )
        if not self.ddp:
            text = text.replace("            last = first + micro == (place + 1) * own\n", "")
        return text

    def _pipeline_main(self) -> str:
        if self.source is None:
            lines = self._decoder_stages()
        else:
            lines = self._traced_stage()
        contexts = (
            "torch.autocast(device.type, torch.bfloat16)"
            if self.half and not self.gathered
            else "nullcontext()"
        )
        finish = (
            ""
            if self.gathered
            else "        for chunk in chunks:\n            average_gradients(chunk, mesh)\n"
        )
        return divide.PIPELINE_MAIN.format(
            build="\n".join(lines),
            optimizer=self._optimizer("[one for chunk in chunks for one in chunk.parameters()]"),
            unpack="tokens, target" if self.source is None else "args, kwargs",
            contexts=contexts,
            given="tokens,"
            if self.source is None
            else "[leaves[place] for place in order] if order else args",
            named="" if self.source is None else ", **named",
            leaves="" if self.source is None else LEAVES,
            target="target" if self.source is None else "torch.zeros(own, device=device)",
            finish=finish,
        )

    def _decoder_stages(self) -> list[str]:
        """Stages by hand: each process builds its own layers alone."""
        one = self.one
        turns = "CHUNKS if stages > 1 else 1" if one.interleave > 1 else "1"
        lines = [
            f"    turns = {turns}",
            "    ends = [LAYERS * part // (stages * turns) for part in range(stages * turns + 1)]",
            "    numbers = [stage + turn * stages for turn in range(turns)]",
            "    chunks = [Decoder(range(ends[number], ends[number + 1])).to(device) for number in numbers]",
            "    for model in chunks:",
        ]
        if one.tensor > 1:
            lines += [
                '        if mesh["tensor"].size() > 1:',
                '            over_tensor(model, mesh["tensor"])',
            ]
        wraps = self._wraps(self._blocks("model"), "model", "        ")
        if one.tensor == 1 and not wraps:
            lines.pop()
        lines += [
            *wraps,
            '    group = mesh["pipeline"].get_group()',
            "    parts = [",
            "        PipelineStage(model, number, stages * turns, device, group=group)",
            "        for model, number in zip(chunks, numbers, strict=True)",
            "    ]",
        ]
        if one.interleave > 1:
            lines += [
                "    if turns > 1:",
                "        schedule: Any = ScheduleInterleaved1F1B(parts, count, loss_fn=loss_of)",
                "    else:",
                "        schedule = ScheduleGPipe(parts[0], count, loss_fn=loss_of)",
            ]
        else:
            lines += _schedule("parts[0]")
        return lines

    def _traced_stage(self) -> list[str]:
        """The traced model cut at its blocks by torch, a stage a process; one process runs it whole."""
        wraps = self._wraps("inside", "model", "    ")
        inside = (
            ["    inside = [name for name in BLOCKS if name in dict(model.named_modules())]"] if wraps else []
        )
        return [
            "    model: nn.Module = build().to(device)",
            '    group = mesh["pipeline"].get_group()',
            "    order: list[int] = []",
            "    if stages > 1:",
            "        example, named = batch(0, micro, device)",
            "        cuts = dict.fromkeys(STARTS, SplitPoint.BEGINNING)",
            "        pipe = pipeline(model, example, named, cuts)",
            "        model = pipe.get_stage_module(stage)",
            "        # The first stage takes the inputs in the order in which it reads them.",
            "        nodes = list(pipe.split_gm.graph.nodes)",
            '        names = [node.name for node in nodes if node.op == "placeholder"]',
            '        first = next(node for node in nodes if node.op == "call_module")',
            "        order = [names.index(read.name) for read in first.args]",
            "    chunks = [model]",
            *inside,
            *wraps,
            "    if stages > 1:",
            "        part = build_stage(model, stage, pipe.info(), device, group)",
            "    else:",
            "        part = PipelineStage(model, stage, stages, device, group=group)",
            *_schedule("part"),
        ]

    def _optimizer(self, parameters: str) -> str:
        wanted = "torch.optim.AdamW" if self.request.training.optimizer == "adamw" else "torch.optim.SGD"
        more = "" if wanted.endswith("AdamW") else ", momentum=0.9"
        if self.one.shard == "zero1":
            return (
                f"    optimizer = ZeroRedundancyOptimizer(\n        {parameters}, {wanted}, "
                f'process_group=mesh["data"].get_group(), lr=RATE{more}\n    )'
            )
        return f"    optimizer = {wanted}({parameters}, lr=RATE{more})"


LEAVES = """        leaves = pytree.tree_leaves((args, kwargs))
        named = kwargs if stages == 1 else {}
"""


def _schedule(stage: str) -> list[str]:
    """1F1B where there is a micro-batch for every stage, else all forward and then all backward."""
    return [
        "    kind = Schedule1F1B if count >= stages > 1 else ScheduleGPipe",
        f"    schedule = kind({stage}, count, loss_fn=loss_of)",
    ]
