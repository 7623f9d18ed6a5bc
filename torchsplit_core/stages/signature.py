"""Converts a model's arguments to named values, and named values to its result."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchsplit_core.values import InputFault, StageManifest, StageValue, quoted

REMEDY = "Pass arguments like those of get_example_inputs()."


def bind_arguments(
    manifest: StageManifest, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The model's inputs by name. Raises InputFault if structure, dtype, rank, a fixed size or a constant differs.

    It does so for a free size, too, for which the parts are not the model.
    """
    structure = pytree.treespec_loads(manifest.input_structure)
    names = structure.child(1).context or []
    if set(names) == set(kwargs):
        kwargs = {name: kwargs[name] for name in names}
    leaves, given_structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    if given_structure != structure:
        raise InputFault(
            "the arguments",
            f"{len(args)} positional, keywords {', '.join(kwargs) or 'none'}, {len(leaves)} values in all, "
            f"differ from the structure that was traced, of {len(manifest.inputs)} values",
            REMEDY,
        )
    described = {value.name: value for part in manifest.stages for value in part.inputs}
    values: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for slot, leaf in zip(manifest.inputs, leaves, strict=True):
        if slot.name is not None:
            values[slot.name] = leaf
            if slot.name in described:
                _check_argument(described[slot.name], leaf, sizes)
        elif type(leaf) is not type(slot.constant) or leaf != slot.constant:
            raise InputFault(
                "a constant argument", f"is {quoted(leaf)}, but was {slot.constant!r} when traced", REMEDY
            )
    for limited in manifest.sizes:
        size = sizes.get(limited.symbol, limited.least)
        if size < limited.least or (limited.most is not None and size > limited.most):
            until = "and more" if limited.most is None else f"to {limited.most}"
            raise InputFault(
                "the arguments",
                f"have the size {size} ({limited.symbol}), and the parts are the model for {limited.least} {until}",
                "Run the whole model on these.",
            )
    return values


def unflatten_result(manifest: StageManifest, values: Mapping[str, Any]) -> Any:
    """The model's result, in its structure."""
    leaves = [slot.constant if slot.name is None else values[slot.name] for slot in manifest.outputs]
    if not manifest.output_structure:
        return tuple(leaves)
    try:
        structure = pytree.treespec_loads(manifest.output_structure)
    except NotImplementedError as error:
        raise InputFault(
            "the result",
            f"is of a type that is not known here: {error}",
            "Import the library it is from first, as the model's own code does.",
        ) from error
    return pytree.tree_unflatten(leaves, structure)


def _check_argument(value: StageValue, given: Any, sizes: dict[str, int]) -> None:
    """Check an argument against its description; `sizes` collects the free sizes by symbol."""
    where = f"input {value.name}"
    if value.shape is None:
        return
    if not isinstance(given, torch.Tensor):
        raise InputFault(where, f"is a {type(given).__name__}, not a tensor", REMEDY)
    dtype = str(given.dtype).removeprefix("torch.")
    if dtype != value.dtype:
        raise InputFault(where, f"has dtype {dtype}, not {value.dtype}", REMEDY)
    fits = given.dim() == len(value.shape) and all(map(_fits, given.shape, value.shape, repeat(sizes)))
    if not fits:
        shape = " × ".join(map(str, value.shape))
        raise InputFault(
            where, f"has shape {tuple(given.shape)}, not {shape} (a letter is one size throughout)", REMEDY
        )


def _fits(size: int, expected: int | str, sizes: dict[str, int]) -> bool:
    """Whether a size equals a fixed size, or a symbol's earlier size. Other expressions are left to the stage."""
    if isinstance(expected, int):
        return size == expected
    return not expected.isidentifier() or sizes.setdefault(expected, size) == size
