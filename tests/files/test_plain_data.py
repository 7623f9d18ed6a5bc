"""What files leave out stands in a table of names: each of them has to be a field of its format, with that default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torchsplit_core.files import FORMATS, schema_of
from torchsplit_core.files.plain_data import LEFT_OUT, PROFILED

LEFT = [(name, path, key) for name, paths in LEFT_OUT.items() for path, keys in paths.items() for key in keys]


def described(format_name: str, path: str) -> list[dict[str, Any]]:
    """The properties of every kind of object that a format's schema allows at the path."""
    schema = schema_of(format_name)

    def kinds(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "$ref" in found:
            yield from kinds(schema["$defs"][found["$ref"].rpartition("/")[2]])
        elif "items" in found:
            yield from kinds(found["items"])
        elif "properties" in found:
            yield found["properties"]
        for other in (*found.get("anyOf", ()), *found.get("oneOf", ())):
            yield from kinds(other)

    found = list(kinds(schema))
    for step in path.split(".") if path else ():
        found = [kind for properties in found if step in properties for kind in kinds(properties[step])]
    return found


@pytest.mark.parametrize(("format_name", "path", "key"), LEFT)
def test_what_is_left_out_is_read_back_as_its_default(format_name: str, path: str, key: str) -> None:
    assert format_name in FORMATS
    defaults = [kind[key].get("default", "none") for kind in described(format_name, path) if key in kind]
    assert defaults and all(default == LEFT_OUT[format_name][path][key] for default in defaults)


@pytest.mark.parametrize("format_name", PROFILED)
def test_objects_with_a_profile_are_where_they_are_looked_for(format_name: str) -> None:
    found = described(format_name, PROFILED[format_name])
    assert found and all("profile" in kind for kind in found)
