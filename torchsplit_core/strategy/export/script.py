"""A candidate of a strategy as the text of a Python script."""

from __future__ import annotations

import json
from dataclasses import dataclass
from textwrap import wrap

from torchsplit_core.model_source import ModelSource, parse_source
from torchsplit_core.strategy.export import client_template, decoder_template, parallel_template
from torchsplit_core.strategy.export.exportability import check_exportable
from torchsplit_core.strategy.export.imports import imports_of
from torchsplit_core.strategy.search.descriptions import describe_choices
from torchsplit_core.strategy.search.software import compiles_layers
from torchsplit_core.values.strategy.outcome import StrategyCandidate
from torchsplit_core.values.strategy.request import SourceSizes, StrategyRequest
from torchsplit_core.values.training import SHARDED

LINE_WIDTH = 110
"""Most characters of a line."""
SHARD_WORDS = {
    "zero2": "Gradients and optimizer states divided over the copies, weights gathered between the passes.",
    "fsdp": "Weights, gradients and optimizer states divided over the copies, gathered block by block.",
    "hsdp": "States divided over the copies of a node and repeated over nodes.",
}


@dataclass(frozen=True, slots=True)
class TracedBlocks:
    """The blocks of a model of kind source, and the block with which each pipeline stage begins."""

    blocks: tuple[str, ...]
    starts: tuple[str, ...] = ()


def script(
    request: StrategyRequest,
    candidate: StrategyCandidate,
    traced: TracedBlocks | None = None,
    *,
    trust: bool = False,
) -> str:
    """The script. Raises InputFault for a strategy that a script cannot carry out."""
    source_model: ModelSource | None = None
    if isinstance(request.model, SourceSizes):
        source_model = parse_source(request.model.source, trust=trust)
    check_exportable(request, candidate)
    return _Script(request, candidate, source_model, traced or TracedBlocks(())).text()


@dataclass(frozen=True, slots=True)
class _Script:
    request: StrategyRequest
    candidate: StrategyCandidate
    source: ModelSource | None
    traced: TracedBlocks

    @property
    def half(self) -> bool:
        return self.request.training.precision == "bf16"

    @property
    def sharded(self) -> bool:
        return self.candidate.shard in SHARDED

    @property
    def tied(self) -> bool:
        model = self.request.model
        return not isinstance(model, SourceSizes) and model.tied_embeddings and self.candidate.pipeline == 1

    @property
    def ddp(self) -> bool:
        """Whether torch's DistributedDataParallel sums the gradients, rather than the script."""
        candidate = self.candidate
        return not self.sharded and candidate.tensor == candidate.pipeline == candidate.expert == 1

    @property
    def context(self) -> bool:
        """Whether each process has a part of every sequence."""
        return self.candidate.context > 1

    @property
    def experts(self) -> bool:
        """Whether the decoder's layers are mixtures of experts."""
        model = self.request.model
        return not isinstance(model, SourceSizes) and model.experts > 1

    @property
    def compiled(self) -> bool:
        """Whether layers are compiled, as the estimate assumes for all but traced models."""
        model = self.request.model
        return not isinstance(model, SourceSizes) and compiles_layers(self.candidate.choices, model.experts)

    def _context_parts(self, indent: str) -> dict[str, str]:
        """What the main function adds if sequences are divided."""
        if not self.context:
            return {"groups": "", "parts": "", "copies": "data"}
        return {
            "groups": parallel_template.CONTEXT_GROUPS,
            "parts": indent + parallel_template.PARTS,
            "copies": "(data * context)",
        }

    def text(self) -> str:
        """Head, model, division, main; only what the strategy needs."""
        candidate = self.candidate
        body = self._model()
        body += parallel_template.start_text(context=self.context, experts=self.experts)
        if candidate.tensor > 1:
            model = self.request.model
            assert not isinstance(model, SourceSizes)
            body += decoder_template.tensor_text(
                model.transformer(), tied=self.tied, sequence_parallel=candidate.sequence_parallel
            )
        if candidate.recompute == "full":
            body += parallel_template.RECOMPUTE_FULL
        elif candidate.recompute == "selective":
            saved = ("every second product and attention", "seen[context.is_recompute] % 2 == 0")
            if self.source is not None:
                saved = ("products and attention", "True")
            body += parallel_template.RECOMPUTE_SELECTIVE.replace("{kept}", saved[0]).replace(
                "{every}", saved[1]
            )
        if self.sharded:
            if candidate.expert > 1 and candidate.recompute == "selective":
                body += parallel_template.PROFILED
            body += self._shard()
        elif not self.ddp:
            divided = self.candidate.expert > 1
            body += parallel_template.EXPERT_WEIGHTS if divided else ""
            body += parallel_template.AVERAGE_EXPERTS if divided else parallel_template.AVERAGE
        if candidate.shard == "zero1" and candidate.tensor > 1:
            body += parallel_template.ZERO_OF_TENSORS
        elif candidate.shard == "zero1" and candidate.expert > 1:
            body += parallel_template.ZERO_OF_EXPERTS
        body += self._pipeline_main() if candidate.pipeline > 1 else self._plain_main()
        body += parallel_template.END
        return f"{self._head()}{imports_of(body)}{self._constants()}{body}"

    def _head(self) -> str:
        candidate = self.candidate
        entry = candidate.stages[0].fleet if candidate.stages else 0
        per_node = self.request.fleet[entry].gpus_per_node
        nodes = -(-candidate.devices // per_node)
        run = f"torchrun --nproc-per-node {min(per_node, candidate.devices)}"
        if nodes > 1:
            run = (
                f"torchrun --nnodes {nodes} --nproc-per-node {per_node} --rdzv-backend c10d "
                f"--rdzv-endpoint HOST:29500"
            )
        summary = f"A training step divided by a strategy: {describe_choices(candidate.choices)}."
        fitted = "\n".join(wrap(summary, LINE_WIDTH - 3))
        return (
            f'"""{fitted}\n\n'
            f"Reckoned {candidate.seconds_per_step:.3g} s/step and {candidate.memory_gib.total:.3g} "
            f"GiB on the fullest device "
            f"({candidate.basis}, untested on hardware).\n"
            "Written by TorchSplit; it is yours to edit: data, loss and learning rate are placeholders.\n\n"
            f"    {run} THIS_FILE.py\n\n"
            "Without a GPU it runs on gloo. One process divides nothing and has the same loss, to compare with:\n\n"
            "    python THIS_FILE.py\n"
            '"""\n\nfrom __future__ import annotations\n\n'
        )

    def _constants(self) -> str:
        candidate, training = self.candidate, self.request.training
        lines = [
            f"TENSOR, PIPELINE = {candidate.tensor}, {candidate.pipeline}  # the rest of the "
            f"processes are copies: data",
            f"GLOBAL_BATCH, MICRO_BATCH = {training.global_batch}, {candidate.micro_batch}",
            "SEED, RATE = 0, 1e-4",
        ]
        if self.compiled:
            lines.append("COMPILE = torch.cuda.is_available()  # layers, as the estimate assumes")
        if self.context:
            lines.append(f"CONTEXT = {candidate.context}  # processes that have parts of the same sequences")
        if self.experts:
            lines.append(f"EXPERT = {candidate.expert}  # processes that have the experts among them")
        if candidate.interleave > 1:
            lines.append(f"CHUNKS = {candidate.interleave}  # of each stage")
        if training.precision == "tf32":
            lines.append('torch.set_float32_matmul_precision("high")')
        return "\n" + "\n".join(lines) + "\n"

    def _model(self) -> str:
        if self.source is not None:
            text = client_template.model_text(self.source, self.traced.blocks)
            if self.candidate.pipeline > 1:
                text = text.replace(
                    "\n\ndef build()", f"\nSTARTS = {json.dumps(self.traced.starts)}\n"
                    '"""Blocks with which the second stage and those after it begin."""\n\n\ndef build()', 1,
                )  # fmt: skip
            return text
        model = self.request.model
        assert not isinstance(model, SourceSizes)
        return decoder_template.model_text(model.transformer(), tied=self.tied, context=self.context)

    def _shard(self) -> str:
        candidate = self.candidate
        policy = "MixedPrecisionPolicy()"
        if self.half:
            policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
        offload = ""
        if candidate.offload == "parameters":
            offload = (
                ",\n                    offload_policy=CPUOffloadPolicy(pin_memory=torch.cuda.is_available())"
            )
        reshard = "True" if candidate.shard != "zero2" and candidate.pipeline == 1 else "False"
        experts = ""
        if candidate.expert > 1:
            experts = parallel_template.SHARD_EXPERTS.format(reshard=reshard, offload=offload)
        return parallel_template.SHARD.format(
            experts=experts,
            words=SHARD_WORDS[candidate.shard],
            replicas=parallel_template.REPLICAS if candidate.shard == "hsdp" else parallel_template.ONE_GROUP,
            policy=policy,
            reshard=reshard,
            offload=offload,
        )

    def _wraps(self, blocks: str, model: str, indent: str) -> list[str]:
        """Wrap each block in recomputation, then compilation, then sharding, from the inside out."""
        lines = []
        if self.candidate.recompute != "none":
            lines += [f"{indent}for name in {blocks}:",
                      f"{indent}    {model}.set_submodule(name, run_again({model}.get_submodule(name)))"]  # fmt: skip
        if self.compiled:
            lines += [f"{indent}for name in {blocks} if COMPILE else ():",
                      f"{indent}    {model}.get_submodule(name).compile()"]  # fmt: skip
        if self.sharded:
            lines.append(f"{indent}units = [{model}.get_submodule(name) for name in {blocks}]")
            lines.append(f"{indent}shard(units, {model}, mesh)")
        return lines

    def _blocks(self, model: str) -> str:
        if self.source is not None:
            return "BLOCKS"
        return f'[f"layers.{{place}}" for place in range(len({model}.layers))]'

    def _plain_main(self) -> str:
        candidate = self.candidate
        build = "build()" if self.source is not None else "Decoder()"
        lines = [f"    model: nn.Module = {build}.to(device)"]
        if candidate.tensor > 1:
            lines += ['    if mesh["tensor"].size() > 1:', '        over_tensor(model, mesh["tensor"])']
        lines += self._wraps(self._blocks("model"), "model", "    ")
        if self.ddp:
            lines.append("    model = DistributedDataParallel(model, gradient_as_bucket_view=True)")
        contexts = ["torch.autocast(device.type, torch.bfloat16)"] if self.half and not self.sharded else []
        if self.ddp:
            contexts.append("nullcontext() if last else model.no_sync()")
        if self.context:
            contexts.append("ring(device)")
        call = "model(tokens), target" if self.source is None else "model(*args, **kwargs)"
        # Gradients that the script sums itself, once a step.
        finish = "        average_gradients(model, mesh)\n" if not self.ddp and not self.sharded else ""
        text = parallel_template.PLAIN_MAIN.format(
            build="\n".join(lines),
            optimizer=self._optimizer("[model]"),
            unpack="tokens, target" if self.source is None else "args, kwargs",
            contexts=", ".join(contexts) or "nullcontext()",
            call=call,
            finish=finish,
            **self._context_parts(" " * 12),
        )
        if not self.ddp:
            text = text.replace("            last = first + micro == (place + 1) * own\n", "")
        return text

    def _pipeline_main(self) -> str:
        if self.source is None:
            lines = self._decoder_stages()
        else:
            lines = self._traced_stage()
        contexts = ["torch.autocast(device.type, torch.bfloat16)"] if self.half and not self.sharded else []
        if self.context:
            contexts.append("ring(device)")
        finish = (
            ""
            if self.sharded
            else "        for chunk in chunks:\n            average_gradients(chunk, mesh)\n"
        )
        return parallel_template.PIPELINE_MAIN.format(
            build="\n".join(lines),
            optimizer=self._optimizer("chunks"),
            unpack="tokens, target" if self.source is None else "args, kwargs",
            contexts=", ".join(contexts) or "nullcontext()",
            given="tokens,"
            if self.source is None
            else "[leaves[place] for place in order] if order else args",
            named="" if self.source is None else ", **named",
            leaves="" if self.source is None else LEAVES,
            target="target" if self.source is None else "torch.zeros(own, device=device)",
            finish=finish,
            **self._context_parts(" " * 8),
        )

    def _decoder_stages(self) -> list[str]:
        """Manual stages: each process builds only its own layers."""
        candidate = self.candidate
        turns = "CHUNKS if stages > 1 else 1" if candidate.interleave > 1 else "1"
        lines = [
            f"    turns = {turns}",
            "    ends = [LAYERS * part // (stages * turns) for part in range(stages * turns + 1)]",
            "    numbers = [stage + turn * stages for turn in range(turns)]",
            "    chunks = [Decoder(range(ends[number], ends[number + 1])).to(device) for number in numbers]",
            "    for model in chunks:",
        ]
        if candidate.tensor > 1:
            lines += [
                '        if mesh["tensor"].size() > 1:',
                '            over_tensor(model, mesh["tensor"])',
            ]
        wraps = self._wraps(self._blocks("model"), "model", "        ")
        if candidate.tensor == 1 and not wraps:
            lines.pop()
        lines += [
            *wraps,
            '    group = mesh["pipeline"].get_group()',
            "    parts = [",
            "        PipelineStage(model, number, stages * turns, device, group=group)",
            "        for model, number in zip(chunks, numbers, strict=True)",
            "    ]",
        ]
        if candidate.interleave > 1:
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
        """torch cuts the traced model at its blocks, one stage a process; a single process runs it whole."""
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

    def _optimizer(self, models: str) -> str:
        parameters = "model.parameters()"
        if models != "[model]":
            parameters = f"[weight for chunk in {models} for weight in chunk.parameters()]"
        optimizer_class = (
            "torch.optim.AdamW" if self.request.training.optimizer == "adamw" else "torch.optim.SGD"
        )
        more = "" if optimizer_class.endswith("AdamW") else ", momentum=0.9"
        if self.candidate.shard == "zero1" and self.candidate.expert > 1:
            return f"    optimizer = ExpertZeroOptimizer({models}, {optimizer_class}, mesh, lr=RATE{more})"
        if self.candidate.shard == "zero1":
            zero = "TensorZeroOptimizer" if self.candidate.tensor > 1 else "ZeroRedundancyOptimizer"
            return (
                f"    optimizer = {zero}(\n        {parameters}, {optimizer_class}, "
                f'process_group=mesh["data"].get_group(), lr=RATE{more}\n    )'
            )
        return f"    optimizer = {optimizer_class}({parameters}, lr=RATE{more})"


LEAVES = """        leaves = pytree.tree_leaves((args, kwargs))
        named = kwargs if stages == 1 else {}
"""


def _schedule(stage: str) -> list[str]:
    """1F1B if there are at least as many micro-batches as stages, else all forward and then all backward."""
    return [
        "    kind = Schedule1F1B if count >= stages > 1 else ScheduleGPipe",
        f"    schedule = kind({stage}, count, loss_fn=loss_of)",
    ]
