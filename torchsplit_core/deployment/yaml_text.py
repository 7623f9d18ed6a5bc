"""YAML of deployment files: ASCII, keys in the given order, no aliases, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable

import yaml


class BlockText(str):
    """A text written as a block, line by line."""

    __slots__ = ()


class Dumper(yaml.CSafeDumper):
    """Writes no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


Dumper.add_representer(
    BlockText, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


def document(value: object, dumper: type[Dumper] = Dumper) -> str:
    """One document."""
    return yaml.dump(value, Dumper=dumper, sort_keys=False, width=110)


def documents(values: Iterable[object]) -> str:
    """Several, one after the other."""
    return "---\n".join(map(document, values))
