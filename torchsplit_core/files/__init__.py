"""The file edge: contract files in and out, checked strictly, turned into values.

Every format has a pydantic model (unknown keys forbidden), and `docs/schemas/` holds its
JSON schema. Inside the program only the frozen values travel.
"""

from torchsplit_core.files.contract import (
    FORMATS,
    read_file,
    read_text,
    schema_of,
    write_file,
    write_text,
)
from torchsplit_core.files.replace import replace_file

__all__ = ["FORMATS", "read_file", "read_text", "replace_file", "schema_of", "write_file", "write_text"]
