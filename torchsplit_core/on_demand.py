"""Packages that import a module on first use of its names (PEP 562), so that unused modules cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that offers names of its modules: module below the package → its names, spaced.

    A name must not be that of a module of the package: once that is loaded, it would stand in the name's place.
    Type checkers read the same names from imports under `TYPE_CHECKING`; a test of tests/layers holds both together.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    return load
