"""Random instances in blocks, and which cases of a test are left to `make test-repeated`."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

BLOCK = 10
"""Instances in one case: enough that starting a case costs little, few enough that workers share the work."""

KEPT_BLOCK = 2
"""The same in `make test`, where the others are left to `make test-repeated`."""


def in_blocks(
    names: str, instances: Iterable[Any], kept: int | None = None
) -> Callable[[Callable[..., None]], Any]:
    """Like `pytest.mark.parametrize(names, instances)`, with `BLOCK` instances to a case; with `kept`, so many cases
    of `KEPT_BLOCK` are in `make test` (see `repeated`).

    `names` are arguments of the test, separated by commas; `instances` a value for each, or tuples of values. A
    fault carries the instance it came with. Fixtures are shared by the instances of a block.
    """
    taken = [name.strip() for name in names.split(",")]
    every = list(instances)
    first = every[: (kept or 0) * KEPT_BLOCK]
    blocks = [tuple(first[start : start + KEPT_BLOCK]) for start in range(0, len(first), KEPT_BLOCK)]
    blocks += [tuple(every[start : start + BLOCK]) for start in range(len(first), len(every), BLOCK)]

    def decorate(test: Callable[..., None]) -> Any:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def each(block: tuple[Any, ...], **others: Any) -> None:
            for instance in block:
                values = dict(zip(taken, instance if len(taken) > 1 else (instance,), strict=True))
                try:
                    test(**values, **others)
                except BaseException as fault:
                    fault.add_note(f"with {', '.join(f'{name} = {_said(values[name])}' for name in taken)}")
                    raise

        fixtures = [p for name, p in signature.parameters.items() if name not in taken]
        block = inspect.Parameter("block", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        each.__signature__ = signature.replace(parameters=[block, *fixtures])  # type: ignore[attr-defined]
        return repeated("block", blocks, len(blocks) if kept is None else kept)(each)

    return decorate


def repeated(
    names: str | tuple[str, ...], instances: Iterable[Any], kept: int = 1, **options: Any
) -> pytest.MarkDecorator:
    """`pytest.mark.parametrize(names, instances)` for a test that takes long: all but the first `kept` instances are
    left to `make test-repeated`.

    What the kept ones show is the test's property; the others show it again.
    """
    every = list(instances)
    single = isinstance(names, str)
    more = [pytest.param(*((one,) if single else one), marks=pytest.mark.repeated) for one in every[kept:]]
    return pytest.mark.parametrize(names, [*every[:kept], *more], **options)


def _said(value: Any) -> str:
    return str(getattr(value, "__name__", repr(value)))
