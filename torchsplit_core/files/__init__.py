"""The file edge: contract files in and out, checked strictly, turned into values.

Every format has a pydantic model (unknown keys forbidden), and `docs/schemas/` holds its
JSON schema. Inside the program only the frozen values travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.files.atomic_write import move_into_place, replace_file
    from torchsplit_core.files.contract import (
        FORMATS,
        read_file,
        read_text,
        read_versioned,
        schema_of,
        write_file,
        write_text,
    )
    from torchsplit_core.files.json_text import TRUSTED_BYTES, UPLOAD_BYTES, measure, parse_json, refuse_large
    from torchsplit_core.files.unchecked import read_unchecked, write_unchecked

__all__ = [
    "FORMATS",
    "TRUSTED_BYTES",
    "UPLOAD_BYTES",
    "measure",
    "move_into_place",
    "parse_json",
    "read_file",
    "read_text",
    "read_unchecked",
    "read_versioned",
    "refuse_large",
    "replace_file",
    "schema_of",
    "write_file",
    "write_text",
    "write_unchecked",
]

__getattr__ = on_demand(
    __name__,
    {
        "contract": "FORMATS read_file read_text read_versioned schema_of write_file write_text",
        "json_text": "TRUSTED_BYTES UPLOAD_BYTES measure parse_json refuse_large",
        "atomic_write": "move_into_place replace_file",
        "unchecked": "read_unchecked write_unchecked",
    },
)
