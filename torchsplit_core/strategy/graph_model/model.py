"""A traced model at a batch size: seconds, saved bytes and sent bytes, part by part of its chain."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchsplit_core.graph.sizes import element_bytes
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.roofline import FITTED_CONSTANTS
from torchsplit_core.strategy.cost_model.kernels import BACKWARD_ATTENTION, HostKernels, Kernels
from torchsplit_core.strategy.graph_model.blocks import BlockChain, chain_of, weights
from torchsplit_core.strategy.graph_model.costs import GraphCosts, OperationCost, Width
from torchsplit_core.strategy.graph_model.routed_experts import as_trained
from torchsplit_core.values import GraphNode


@dataclass(frozen=True, slots=True)
class PartCosts:
    """A part for one micro-batch. Seconds of the device (`forward`, `backward`), and of the host, which starts kernels.

    Bytes: `saved` for the backward pass without recomputation, `saved_within` of them inside its block,
    `saved_products` of those from matrix operations, `boundary` the earlier values that its block reads, `handed`
    those that later parts read, `working` beside the saved ones. Seconds: `recompute` of the block's forward pass,
    `recompute_rest` of the same without its products.
    """

    forward: float
    backward: float
    host: float
    recompute: float
    recompute_rest: float
    recompute_host: float
    saved: float
    saved_within: float
    saved_products: float
    boundary: float
    sent: float
    working: float
    flops: float


@dataclass(slots=True)
class GraphCostModel:
    """A graph with its chain, and its costs by batch, width and device.

    `served`: as the model is served, where its experts compute all rows; otherwise as it is trained.
    """

    graph: TorchGraph
    served: bool = False
    chain: BlockChain = field(init=False)
    parameters: tuple[float, ...] = field(init=False)
    """Weights of each part; a weight that several parts read counts in the first."""
    buffer_bytes: float = field(init=False)
    around_parameters: tuple[float, ...] = field(init=False)
    """Of each part's weights those outside its block."""
    tokens: int = field(init=False)
    """Tokens of a sequence if the model reads tokens, else 1."""
    weight_tensors: int = field(init=False)
    _costs: dict[tuple[int, Width], GraphCosts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.served:
            self.graph = as_trained(self.graph)
        self.chain = chain_of(self.graph)
        counts = [0.0] * max(1, len(self.chain.blocks))
        around = list(counts)
        for node in weights(self.graph):
            readers = [
                self.chain.part_of[user] for user in self.graph.users[node.id] if user in self.chain.part_of
            ]
            place = min(readers, default=0)
            counts[place] += _elements(node)
            if not any(user in self.chain.within for user in self.graph.users[node.id]):
                around[place] += _elements(node)
        self.parameters, self.around_parameters = tuple(counts), tuple(around)
        self.buffer_bytes = sum(
            _elements(node) * element_bytes(node.dtype) for node in self.graph.nodes if node.kind == "buffer"
        )
        self.tokens = _tokens(self.graph)
        self.weight_tensors = sum(1 for _ in weights(self.graph))

    @property
    def parts(self) -> int:
        """Parts of the chain, at least one."""
        return len(self.parameters)

    def costs(self, batch: int, width: Width) -> GraphCosts:
        """The operations at a batch size, computed only once."""
        key = batch, width
        if key not in self._costs:
            self._costs[key] = GraphCosts(self.graph, batch, width)
        return self._costs[key]

    def figures(
        self, batch: int, width: Width, kernels: Kernels, *, host_only: bool
    ) -> tuple[PartCosts, ...]:
        """Every part for a micro-batch of `batch` sequences. `host_only`: a processor, which starts no kernels."""
        costs = self.costs(batch, width)
        within: list[list[OperationCost]] = [[] for _ in range(self.parts)]
        around: list[list[OperationCost]] = [[] for _ in range(self.parts)]
        for cost in costs.operations:
            place = self.chain.part_of[cost.id]
            (within if cost.id in self.chain.within else around)[place].append(cost)
        counted: set[str] = set()
        return tuple(
            self._part(costs, inner, outer, kernels, place, counted, host_only)
            for place, (inner, outer) in enumerate(zip(within, around, strict=True))
        )

    def _part(
        self,
        costs: GraphCosts,
        inner: list[OperationCost],
        outer: list[OperationCost],
        kernels: Kernels,
        place: int,
        counted: set[str],
        host_only: bool,
    ) -> PartCosts:
        forward_by_operation = {cost.id: forward_s(cost, kernels) for cost in (*inner, *outer)}
        saved_around = _new_saved(outer, counted)
        saved_within = _new_saved(inner, counted)
        products = sum(size for name, size in saved_within.items() if name.split(" ")[0] in costs.products)
        block_operations = {cost.id for cost in inner}
        handed = self._sent_bytes(costs, place)
        # Each eager kernel takes host time, which a processor adds to the work and a GPU overlaps with it.
        forward_kernel_s, backward_kernel_s = kernel_seconds(kernels, host_only)
        started = [(cost.kernels, cost.backward_kernels) for cost in (*inner, *outer)]
        return PartCosts(
            forward=sum(forward_by_operation.values()),
            backward=sum(backward_s(cost, kernels) for cost in (*inner, *outer)),
            host=sum(
                forward_kernel_s * forward + backward_kernel_s * backward for forward, backward in started
            ),
            recompute=sum(forward_by_operation[cost.id] for cost in inner),
            recompute_rest=sum(forward_by_operation[cost.id] for cost in inner if not cost.matrix_flops),
            recompute_host=forward_kernel_s * sum(cost.kernels for cost in inner),
            saved=sum(saved_around.values()) + sum(saved_within.values()),
            saved_within=sum(saved_within.values()),
            saved_products=products,
            boundary=_boundary_bytes(costs, block_operations),
            sent=handed,
            working=max((cost.working for cost in (*inner, *outer)), default=0.0),
            flops=sum(cost.matrix_flops for cost in (*inner, *outer)),
        )

    def _sent_bytes(self, costs: GraphCosts, place: int) -> float:
        """Bytes of the values computed up to a part that later parts read, each storage once."""
        part_of, graph = self.chain.part_of, self.graph
        owners = {
            costs.owner[name]: costs.bytes(name)
            for name, part in part_of.items()
            if part <= place and any(part_of.get(user, -1) > place for user in graph.users[name])
        }
        return sum(owners.values())


def kernel_seconds(kernels: Kernels, host_only: bool) -> tuple[float, float]:
    """Seconds in which the host starts a kernel of the forward pass, and of the backward pass."""
    if isinstance(kernels, HostKernels):
        return kernels.rates.operation_s, kernels.rates.backward_operation_s
    kernel_s = FITTED_CONSTANTS.device_s if host_only else FITTED_CONSTANTS.host_s
    return kernel_s, kernel_s


def forward_s(cost: OperationCost, kernels: Kernels) -> float:
    """Seconds of an operation's forward pass."""
    if not cost.kernels:
        return 0.0
    moving = kernels.moved(cost.moved_bytes) + kernels.launch_s * cost.kernels
    if cost.attention:
        flops = cost.matrix_flops * (0.5 if cost.causal else 1.0)
        return max(kernels.attention(flops) + kernels.launch_s, moving)
    if cost.shape is not None:
        return max(kernels.gemm(*cost.shape), moving)
    return max(kernels.convolution(cost.matrix_flops), moving)


def backward_s(cost: OperationCost, kernels: Kernels) -> float:
    """Seconds of an operation's backward pass."""
    if cost.attention and cost.factors:
        return BACKWARD_ATTENTION * forward_s(cost, kernels)
    if cost.factors:
        if cost.shape is not None:
            both = kernels.gemm_backward(*cost.shape)
            return max(cost.factors / 2.0 * both, kernels.moved(cost.backward_moved))
        taken = cost.factors * kernels.convolution(cost.matrix_flops)
        return max(taken, kernels.moved(cost.backward_moved)) + kernels.launch_s * cost.backward_kernels
    return kernels.moved(cost.backward_moved) + kernels.launch_s * cost.backward_kernels


def _new_saved(costs: list[OperationCost], counted: set[str]) -> dict[str, float]:
    """Storages that no earlier operation saved."""
    saved: dict[str, float] = {}
    for cost in costs:
        for name, size in cost.saved.items():
            if name not in counted:
                counted.add(name)
                saved[name] = size
    return saved


def _boundary_bytes(costs: GraphCosts, block_operations: set[str]) -> float:
    """Bytes of operations' values that a block reads and did not compute, each storage once."""
    graph = costs.graph
    read = {
        costs.owner[source]: costs.bytes(source)
        for name in block_operations
        for source in graph.by_id[name].inputs
        if source not in block_operations and graph.by_id[costs.owner[source]].kind == "op"
    }
    return sum(read.values())


def _elements(node: GraphNode) -> float:
    """Elements of a weight or buffer, whose sizes are known."""
    count = 1.0
    for size in node.shape or ():
        count *= float(size)
    return count


def _tokens(graph: TorchGraph) -> int:
    """Columns of the first two-dimensional integer input; 1 if there is none."""
    for node in graph.input_nodes:
        whole = (node.dtype or "").removeprefix("torch.") in ("int64", "int32", "long", "int")
        if whole and node.shape is not None and len(node.shape) == 2 and isinstance(node.shape[1], int):
            return node.shape[1]
    return 1
