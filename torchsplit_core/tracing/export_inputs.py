"""Sizes of a model's example inputs that follow the batch, and whether an export left them free."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.utils import _pytree as pytree

from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.limits import LARGEST_WHOLE

TRACED_BATCH = 2
"""With an example batch of 1 torch would treat the batch as a constant."""
OTHER_BATCH = 3
"""Comparing inputs at a second batch size shows which sizes the batch decides."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
WHERE = f"get_example_inputs({TRACED_BATCH})"


@dataclass(frozen=True)
class DynamicSizes:
    """The tensors among `args` and `kwargs` with dimensions that follow the batch, each with these."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[tuple[torch.Tensor, tuple[int, ...]], ...]

    def dynamic_shapes(self, model: torch.nn.Module) -> Any:
        """torch.export's dynamic shapes: every free dimension, by the names of forward's parameters."""
        shapes = ShapesCollection()
        for tensor, dimensions in self.tensors:
            shapes[tensor] = dict.fromkeys(dimensions, Dim.AUTO)
        return shapes.dynamic_shapes(model, self.args, self.kwargs)

    def first_fixed_dimension(self, program: ExportedProgram) -> tuple[str, int] | None:
        """The first input, and its dimension, that the export fixed, as Dim.AUTO does silently."""
        names = pytree.tree_unflatten(list(program.graph_signature.user_inputs), program.call_spec.in_spec)
        values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
        wanted = {id(tensor): dimensions for tensor, dimensions in self.tensors}
        pairs: list[tuple[str, int]] = []

        def check(leaf: Any, name: Any) -> None:
            value = values.get(name) if isinstance(name, str) else None
            if isinstance(value, torch.Tensor):
                pairs.extend(
                    (str(name), d) for d in wanted.get(id(leaf), ()) if not _is_dynamic(value.shape[d])
                )

        pytree.tree_map(check, (self.args, self.kwargs), tuple(names))
        return pairs[0] if pairs else None


def find_dynamic_sizes(
    args: tuple[Any, ...], kwargs: dict[str, Any], other: Arguments | None
) -> DynamicSizes:
    """The sizes that follow the batch: those that differ in `other`, inputs of OTHER_BATCH rows.

    Without `other`, dimension 0 wherever it has TRACED_BATCH rows. Raises InputFault if nothing follows the batch, or
    anything but sizes of tensors does.
    """
    tensors = _differing((args, kwargs), other) if other is not None else _with_rows((args, kwargs))
    if not tensors:
        raise InputFault(
            WHERE,
            "returns no tensor with a size that follows batch_size",
            "Build each input with batch_size rows.",
        )
    return DynamicSizes(args, kwargs, tuple(tensors))


def _with_rows(inputs: Arguments) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
    """The tensors with TRACED_BATCH rows, dimension 0 of each."""
    tensors = (leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim())
    return [(tensor, (0,)) for tensor in tensors if tensor.shape[0] == TRACED_BATCH]


def _differing(inputs: Arguments, other: Arguments) -> list[tuple[torch.Tensor, tuple[int, ...]]]:
    """The tensors of `inputs`, each once, with the dimensions that have another size in `other`."""
    leaves, structure = pytree.tree_flatten_with_path(inputs)
    others, other_structure = pytree.tree_flatten_with_path(other)
    if structure != other_structure:
        raise InputFault(
            WHERE,
            f"returns another structure than for a batch of {OTHER_BATCH} ({len(leaves)} values and {len(others)})",
            "Stack the samples into one tensor instead of a list with an entry for each.",
        )
    by_tensor: dict[int, tuple[torch.Tensor, tuple[int, ...]]] = {}
    for (path, leaf), (_, second) in zip(leaves, others, strict=True):
        where = f"{WHERE}{pytree.keystr(path)}"
        if isinstance(leaf, torch.Tensor) and isinstance(second, torch.Tensor):
            if leaf.dim() != second.dim():
                raise InputFault(
                    where,
                    f"has {leaf.dim()} dimensions, but {second.dim()} for a batch of {OTHER_BATCH}",
                    "Keep the batch dimension where its size is 1.",
                )
            differing = tuple(d for d in range(leaf.dim()) if leaf.shape[d] != second.shape[d])
            if differing:
                by_tensor[id(leaf)] = (leaf, differing)
        elif isinstance(leaf, int | float | str) and leaf != second:
            raise InputFault(
                where,
                f"is {quoted(leaf)}, but {quoted(second)} for a batch of {OTHER_BATCH}",
                "Leave it out and read it in forward from a tensor: x.shape[0].",
            )
    return list(by_tensor.values())


def _is_dynamic(size: int | torch.SymInt) -> bool:
    """Whether the size is free; a fixed one may still be a SymInt with a constant expression."""
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def free_input_sizes(program: ExportedProgram) -> Iterator[tuple[str, int, int | None]]:
    """Each free size of an input: its symbol, its value in the export, and its largest value, None for any.

    A branch of the model's code on the size limits it, as does a Dim with a maximum.
    """
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name not in program.graph_signature.user_inputs or not isinstance(value, torch.Tensor):
            continue
        for size in value.shape:
            allowed = program.range_constraints.get(size.node.expr) if _is_dynamic(size) else None
            if allowed is not None:
                most = int(allowed.upper) if allowed.upper <= LARGEST_WHOLE else None
                yield str(size.node.expr), size.node.hint, most


def find_largest_batch(program: ExportedProgram, traced_batch: int) -> int | None:
    """The largest batch for which the export holds; None for any. A free size may be another one, as of a sequence."""
    sizes = free_input_sizes(program)
    return min((most for _, value, most in sizes if most and value == traced_batch), default=None)


@contextmanager
def explicit_keywords(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[None]:
    """Give forward a parameter for every keyword that its **kwargs takes, inside the `with` block.

    torch 2.13 counts such keywords twice when it looks up their free sizes, and stops. Raises InputFault if the
    arguments do not fit forward's parameters.
    """
    signature = inspect.signature(model.forward)
    parameters = signature.parameters.values()
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise InputFault(
            WHERE,
            f"does not fit the parameters of forward: {error}",
            f"Return what it takes ({', '.join(map(str, parameters)) or 'nothing'}), keywords as (args, kwargs).",
        ) from error
    named = [parameter for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    extra = {
        name for parameter in parameters if parameter not in named for name in bound.get(parameter.name, ())
    }
    if not extra:
        yield
        return
    instance_forward, forward = vars(model).get("forward"), model.forward

    @functools.wraps(forward)
    def explicit(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in kwargs if name in extra]
    explicit.__signature__ = signature.replace(parameters=[*named, *keywords])  # type: ignore[attr-defined]
    model.forward = explicit
    try:
        yield
    finally:
        if instance_forward is None:
            del model.forward
        else:
            model.forward = instance_forward
