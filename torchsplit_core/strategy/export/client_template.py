"""The model section of a file for a SplitClient, which is loaded as its user wrote it."""

from __future__ import annotations

import json

from torchsplit_core.model_source import ModelSource

SAMPLE = """
CLIENT = sample_models().load({name}, {size})
"""
FILE = """
FILE = Path({path})
sys.path.insert(0, str(FILE.parent))
spec = importlib.util.spec_from_file_location("model_file", FILE)
module = importlib.util.module_from_spec(spec)
sys.modules["model_file"] = module
spec.loader.exec_module(module)
CLIENT = getattr(module, {name})
if not hasattr(CLIENT, "get_model") or isinstance(CLIENT, type):
    CLIENT = CLIENT()
"""
MODEL = '''
BLOCKS = {blocks}
"""Modules that are sharded, run again and cut at, one by one."""


def build() -> nn.Module:
    """The model with equal weights in every process."""
    torch.manual_seed(SEED)
    model = CLIENT.get_model()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return model


def batch(first: int, last: int, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for the sequences `first` to `last` of a step: the client's examples. Put your data here."""
    given = CLIENT.get_example_inputs(GLOBAL_BATCH)
    pair = len(given) == 2 and isinstance(given[0], tuple) and isinstance(given[1], dict)
    args, kwargs = given if pair else (given, {{}})

    def part(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        whole = leaf.dim() and leaf.shape[0] == GLOBAL_BATCH
        return (leaf[first:last] if whole else leaf).to(device)

    return pytree.tree_map(part, args), pytree.tree_map(part, kwargs)


def loss_of(outputs: Any, target: Any = None) -> Tensor:
    """The mean square of every output. Put your loss here: a mean over the sequences that it is given."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return sum(leaf.float().square().mean() for leaf in leaves)
'''


def model_text(source: ModelSource, blocks: tuple[str, ...]) -> str:
    """How the file gets the model, its batches and its loss."""
    # JSON strings are valid Python literals: no name can end its own quotes.
    if source.kind == "sample":
        loaded = SAMPLE.format(name=json.dumps(source.name), size=json.dumps(source.size))
    else:
        loaded = FILE.format(path=json.dumps(source.path), name=json.dumps(source.name))
    listed = "()" if not blocks else "(\n" + "".join(f"    {json.dumps(name)},\n" for name in blocks) + ")"
    return loaded + MODEL.format(blocks=listed)
