"""The model section of a file for a transformer given by its sizes: a plain decoder and its tensor parallelism."""

from __future__ import annotations

from torchsplit_core.values.training import Transformer

MODEL = '''
LAYERS, HIDDEN, HEADS, KEY_HEADS, FEED_FORWARD = {layers}, {hidden}, {heads}, {kv_heads}, {ffn}
WORDS, SEQUENCE = {vocab}, {sequence}
HEAD = HIDDEN // HEADS


def rotate(x: Tensor) -> Tensor:
    """Rotary positions of batch × heads × tokens × width (Su et al. 2021)."""
    half = HEAD // 2
    angles = torch.outer(
        {positions}, 10000.0 ** -(torch.arange(half, device=x.device) / half)
    )
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., :half], x[..., half : 2 * half]
    return torch.cat([left * cos - right * sin, right * cos + left * sin, x[..., 2 * half :]], -1)


{context}class Attention(nn.Module):
{over}    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, KEY_HEADS * HEAD, bias=False)
        self.value = nn.Linear(HIDDEN, KEY_HEADS * HEAD, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # As many heads as this device has: tensor parallelism leaves each a part.
        query, key, value = (
            layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = {attend}
        return self.out(mixed.transpose(1, 2).flatten(2))


{experts}class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
{feed_forward}

class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN)
        self.attention = Attention()
        self.feed_norm = nn.RMSNorm(HIDDEN)
        self.feed_forward = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_norm(x))


class Decoder(nn.Module):
    """Some of the layers, with the words before the first of all and behind the last of all.

    Each layer is drawn from a seed of its own, so that every division of the work begins with the same weights.
    """

    def __init__(self, places: range = range(LAYERS)) -> None:
        super().__init__()
        self.words = self.norm = self.head = None
        if 0 in places:
            torch.manual_seed(SEED)
            self.words = nn.Embedding(WORDS, HIDDEN)
            nn.init.normal_(self.words.weight, std=0.02)
        self.layers = nn.ModuleList()
        for place in places:
            torch.manual_seed(SEED + 1 + place)
            self.layers.append(Layer())
        if LAYERS - 1 in places:
            torch.manual_seed(SEED + 1 + LAYERS)
            self.norm = nn.RMSNorm(HIDDEN)
            self.head = nn.Linear(HIDDEN, WORDS, bias=False)
{tied}
    def forward(self, x: Tensor) -> Tensor:
        if self.words is not None:
            x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)) if self.head is not None else x


def batch(first: int, last: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens of the sequences `first` to `last` of a step, and the next ones. Put your data here."""
    sources = [torch.Generator().manual_seed(number) for number in range(first, last)]
    tokens = torch.stack([torch.randint(WORDS, (SEQUENCE + 1,), generator=one) for one in sources]).to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(outputs: Tensor, target: Tensor) -> Tensor:
    """The mean over the words of a micro-batch."""
    return F.cross_entropy(outputs.flatten(0, 1).float(), target.flatten())
'''

WHOLE = {
    "positions": "torch.arange(x.shape[2], device=x.device)",
    "attend": """F.scaled_dot_product_attention(
            rotate(query), rotate(key), value, is_causal=True, enable_gqa=HEADS != KEY_HEADS
        )""",
    "context": "",
    "over": "",
}
"""Attention if each device has whole sequences."""
IN_PARTS = {
    "positions": "positions_of(Attention.over.get_local_rank()).to(x.device)",
    "attend": "attend(rotate(query), rotate(key), value)",
    "context": '''def positions_of(rank: int) -> Tensor:
    """Those of a rank's part of every sequence: a block from the front, and the same from the back."""
    blocks = torch.arange(SEQUENCE).chunk(2 * Attention.over.size())
    return torch.cat([blocks[rank], blocks[-1 - rank]])


def part(x: Tensor) -> Tensor:
    """This process's part of sequences, batch × tokens."""
    return x[:, positions_of(Attention.over.get_local_rank()).to(x.device)]


def ring(device: torch.device) -> Any:
    """On GPUs torch's ring attention; elsewhere `attend` gathers keys and values."""
    if device.type == "cpu" or Attention.over.size() == 1:
        return nullcontext()
    whole = torch.arange(SEQUENCE, device=device)
    return context_parallel(Attention.over, buffers=[whole], buffer_seq_dims=[0])


def gather(x: Tensor) -> Tensor:
    """The parts of all processes in a row; gradients are summed and scattered."""
    parts = DTensor.from_local(x, Attention.over, [Shard(2)], run_check=False)
    return parts.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


@torch.compiler.disable
def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of this process's positions to those of all. Compiled, it would not be torch's ring."""
    mask = None
    if query.device.type == "cpu":
        everywhere = torch.cat([positions_of(rank) for rank in range(Attention.over.size())])
        mask = positions_of(Attention.over.get_local_rank())[:, None] >= everywhere
        key, value = gather(key), gather(value)
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, enable_gqa=HEADS != KEY_HEADS
    )


''',
    "over": '''    over: DeviceMesh
    """The processes that have the parts of a sequence."""

''',
}
"""Attention if each device has a part of every sequence."""
GATED = """        self.gate = nn.Linear(HIDDEN, FEED_FORWARD, bias=False)
        self.up = nn.Linear(HIDDEN, FEED_FORWARD, bias=False)
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))
"""
PLAIN = """        self.up = nn.Linear(HIDDEN, FEED_FORWARD, bias=False)
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))
"""
EXPERTS = '''EXPERTS, CHOSEN = {experts}, {chosen}


class Experts(nn.Module):
    """The experts of this process: of all, as many as each that has some of them."""

    over: DeviceMesh
    """Processes as copies × those that have the experts among them."""

    def __init__(self) -> None:
        super().__init__()
        count = EXPERTS // Experts.over["expert"].size()
        first = Experts.over["expert"].get_local_rank() * count

        def draw(outputs: int, inputs: int) -> nn.Parameter:
            every = torch.randn(EXPERTS, outputs, inputs) * inputs**-0.5
            return nn.Parameter(every[first : first + count].clone())

{weights}
    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Tokens × width, ordered by expert, `counts` of each."""
        parts = tokens.split(counts.tolist())
        return torch.cat([self.expert(number, part) for number, part in enumerate(parts)])

    def expert(self, number: int, x: Tensor) -> Tensor:
        return {expert}


def exchange(x: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """So many rows to each process that has experts, so many from each."""
    group = Experts.over["expert"].get_group()
    return all_to_all_single_autograd(x, received, sent, group)


'''
ROUTED = """        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        # Put a loss that balances the experts here.
        tokens, ranks = x.flatten(0, 1), Experts.over["expert"].size()
        scores, chosen = self.router(tokens).topk(CHOSEN)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=EXPERTS).unflatten(0, (ranks, -1))
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=Experts.over["expert"].get_group())
        sent, received = counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = exchange(tokens[order // CHOSEN], sent, received)
        # They arrive by process, then by expert.
        numbers = torch.arange(arriving.shape[1], device=x.device).repeat(ranks)
        by_expert = numbers.repeat_interleave(arriving.flatten()).argsort(stable=True)
        done = self.experts(rows[by_expert], arriving.sum(0))
        returned = exchange(done[by_expert.argsort()], received, sent)
        weighted = returned[order.argsort()].unflatten(0, (-1, CHOSEN)) * scores.softmax(-1)[..., None]
        return weighted.sum(1).to(x.dtype).view_as(x)
"""
EXPERT_WEIGHTS = {
    True: """        self.gate, self.up = draw(FEED_FORWARD, HIDDEN), draw(FEED_FORWARD, HIDDEN)
        self.down = draw(HIDDEN, FEED_FORWARD)
""",
    False: """        self.up, self.down = draw(FEED_FORWARD, HIDDEN), draw(HIDDEN, FEED_FORWARD)
""",
}
"""Keyed by whether the feed-forward is gated."""
EXPERT = {
    True: "(F.silu(x @ self.gate[number].T) * (x @ self.up[number].T)) @ self.down[number].T",
    False: "F.gelu(x @ self.up[number].T) @ self.down[number].T",
}
TIED = """            if self.words is not None:
                self.head.weight = self.words.weight
"""

TENSOR = '''

def over_tensor(model: Decoder, mesh: DeviceMesh) -> None:
    """Tensor parallelism: products of a layer divided by columns, then by rows, so that a layer sums twice."""
    plan: dict[str, ParallelStyle] = {{}}
    if model.words is not None:
        plan["words"] = RowwiseParallel(input_layouts=Replicate(), output_layouts={between})
    for place in range(len(model.layers)):
        layer = f"layers.{{place}}"
        for name in ("attention.query", "attention.key", "attention.value", {columns}):
            plan[f"{{layer}}.{{name}}"] = ColwiseParallel()
        for name in ("attention.out", "feed_forward.down"):
            plan[f"{{layer}}.{{name}}"] = RowwiseParallel(output_layouts={between})
{sequence}    if model.head is not None:
{norm}        plan["head"] = ColwiseParallel(input_layouts={between}, output_layouts=Replicate())
    parallelize_module(model, mesh, plan)
{tied}'''

SEQUENCE = """        for name in ("attention", "feed_forward"):
            whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            plan[f"{layer}.{name}"] = whole
        for name in ("attention_norm", "feed_norm"):
            plan[f"{layer}.{name}"] = SequenceParallel()
"""


def model_text(model: Transformer, *, tied: bool, context: bool) -> str:
    """The decoder of these sizes. `context`: each process has a part of every sequence."""
    experts = ""
    if model.experts > 1:
        experts = EXPERTS.format(
            experts=model.experts,
            chosen=model.experts_per_token,
            weights=EXPERT_WEIGHTS[model.gated],
            expert=EXPERT[model.gated],
        )
    return MODEL.format(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn=model.ffn,
        vocab=model.vocab,
        sequence=model.sequence,
        experts=experts,
        feed_forward=ROUTED if experts else GATED if model.gated else PLAIN,
        tied=TIED if tied else "",
        **(IN_PARTS if context else WHOLE),
    )


def tensor_text(model: Transformer, *, tied: bool, sequence_parallel: bool) -> str:
    """How tensor parallelism divides the decoder."""
    columns = '"feed_forward.gate", "feed_forward.up"' if model.gated else '"feed_forward.up"'
    return TENSOR.format(
        between="Shard(1)" if sequence_parallel else "Replicate()",
        columns=columns,
        sequence=SEQUENCE if sequence_parallel else "",
        norm='        plan["norm"] = SequenceParallel()\n' if sequence_parallel else "",
        tied="    model.head.weight = model.words.weight\n" if tied else "",
    )
