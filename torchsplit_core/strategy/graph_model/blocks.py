"""A traced model as a chain of parts: its repeated blocks in execution order, each with the operations around it.

A block is the outermost module whose name ends in a number: an entry of a ModuleList or Sequential
(`encoder.layer.3`). Blocks are sharded, recomputed and cut at. What runs between two blocks belongs to the later one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import GraphNode

AROUND = ""
"""The name for operations outside of all blocks."""


def block_of(module: str) -> str:
    """The outermost numbered module on a path; "" if there is none."""
    names = module.split(".")
    for place, name in enumerate(names):
        if name.isdigit():
            return ".".join(names[: place + 1])
    return AROUND


@dataclass(frozen=True, slots=True)
class BlockChain:
    """Blocks in execution order. `part_of`: for every operation the index of its block, or of the block that it
    precedes (after the last block: the last). `within`: operations that belong to a block.

    `no_stages`: why the chain cannot be cut into stages; `late_input`: why not if only the first stage receives the
    model's inputs; "" if it can be cut.
    """

    blocks: tuple[str, ...]
    part_of: dict[str, int]
    within: frozenset[str]
    no_stages: str
    late_input: str = ""

    @property
    def no_cut(self) -> str:
        """Why an exported script cannot cut it into stages; there only the first stage receives inputs."""
        return self.no_stages or self.late_input


def chain_of(graph: TorchGraph) -> BlockChain:
    """The chain of a graph; a model without blocks is a single part."""
    runs: list[str] = []
    part_of: dict[str, int] = {}
    within: set[str] = set()
    last = AROUND
    for node in graph.nodes:
        if node.kind != "op":
            continue
        block = block_of(node.module)
        if block != AROUND:
            within.add(node.id)
            if block != last:
                runs.append(block)
            last = block
        # Until its block is known, an operation waits for the next one.
        part_of[node.id] = len(runs) - (1 if block != AROUND else 0)
    most = max(len(runs) - 1, 0)
    part_of = {name: min(place, most) for name, place in part_of.items()}
    blocks = tuple(dict.fromkeys(runs))
    if len(blocks) < len(runs):
        twice = next(block_name for block_name in blocks if runs.count(block_name) > 1)
        first = {block: place for place, block in enumerate(blocks)}
        # One part a block; a chain that returns to a block cannot be cut.
        part_of = {node.id: first.get(block_of(node.module), 0) for node in graph.nodes if node.kind == "op"}
        return BlockChain(
            blocks, part_of, frozenset(within), f"the work comes back to {twice} after other blocks"
        )
    late = _late_input(graph, blocks, part_of)
    return BlockChain(blocks, part_of, frozenset(within), _no_stages(graph, blocks, part_of), late)


def _late_input(graph: TorchGraph, blocks: tuple[str, ...], part_of: dict[str, int]) -> str:
    for node in graph.input_nodes:
        late = [user for user in graph.users[node.id] if part_of.get(user, 0) > 0]
        if late:
            return f"block {blocks[part_of[late[0]]]} reads the model's input {node.id}, which the first stage has"
    return ""


def _no_stages(graph: TorchGraph, blocks: tuple[str, ...], part_of: dict[str, int]) -> str:
    if len(blocks) < 2:
        return "it has no repeated blocks"
    if graph.subgraphs:
        return "its path depends on data (cond or while)"
    for node in weights(graph):
        parts = {part_of[user] for user in graph.users[node.id] if user in part_of}
        if len(parts) > 1:
            return f"two blocks read the weight {node.id}, and a stage has its own"
    return ""


def weights(graph: TorchGraph) -> tuple[GraphNode, ...]:
    """The parameters, each once."""
    return tuple(node for node in graph.nodes if node.kind == "parameter")
