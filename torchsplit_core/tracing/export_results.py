"""Makes a model's inputs and results fit for torch.export without losing anything.

torch.export supports tensors, plain values and containers of them, including registered dataclasses. A transformers
model also returns a cache for its next call: no result of this call, so it is turned off, with a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsplit_core.model_source import foreign_code
from torchsplit_core.values import InputFault

EXPORTABLE_TYPES = (torch.Tensor, torch.ScriptObject, int, float, str, type(None))
"""Values that torch.export accepts in a result (KNOWN_TYPES of torch._functorch._aot_autograd.utils)."""
REMEDY = "Mend the model's code; it runs in eval mode without gradients, as in serving."
CACHE_NOTE = (
    "use_cache in the model's config was turned off for the trace: a cache for later calls is no "
    "result of this one, and as one it would leave hardly a place to cut."
)


@contextmanager
def mend_results(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, ...]]:
    """Run the model once on its example inputs and convert what torch.export would reject in the result.

    Inside the `with` block the model returns supported values; the notes say what was changed. Raises InputFault if the
    model does not run, or returns something else.
    """
    unsupported, structure = _run_once(model, args, kwargs)
    configs = _configs_with_cache(model)
    _set_cache(configs, False)
    try:
        notes: tuple[str, ...] = ()
        if configs:
            unsupported, without = _run_once(model, args, kwargs)
            if without == structure:
                _set_cache(configs, True)
            else:
                notes = (CACHE_NOTE,)
        if unsupported is not None:
            raise InputFault(
                f"forward: result{unsupported[0]}",
                f"is of type {type(unsupported[1]).__name__}, which torch.export does not know",
                "Return its tensors in its place, or leave it out: a transformers model leaves out its cache with "
                "use_cache=False.",
            )
        yield notes
    finally:
        _set_cache(configs, True)


def register_dataclasses(tree: Any) -> Any:
    """Register every dataclass instance of a structure with torch; returns the structure."""
    kinds = {
        type(leaf) for leaf in pytree.tree_leaves(tree) if is_dataclass(leaf) and not isinstance(leaf, type)
    }
    for kind in kinds:
        torch.export.register_dataclass(kind)
    return register_dataclasses(tree) if kinds else tree


def _run_once(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[str, Any] | None, pytree.TreeSpec]:
    """The first value of the result that torch.export rejects, with its path; and the result's structure."""
    with foreign_code("forward on the example inputs", REMEDY), torch.no_grad():
        result = register_dataclasses(model(*args, **kwargs))
    leaves, structure = pytree.tree_flatten_with_path(result)
    unsupported = [
        (pytree.keystr(path), leaf) for path, leaf in leaves if not isinstance(leaf, EXPORTABLE_TYPES)
    ]
    return (unsupported[0] if unsupported else None), structure


def _configs_with_cache(model: torch.nn.Module) -> list[Any]:
    """The configs in the model, in the form of transformers, that enable a cache."""
    configs = {id(config): config for config in (getattr(m, "config", None) for m in model.modules())}
    return [config for config in configs.values() if getattr(config, "use_cache", None) is True]


def _set_cache(configs: list[Any], wanted: bool) -> None:
    for config in configs:
        config.use_cache = wanted
