"""Write the JSON schema of every contract file to docs/schemas (run after a change of a value in FORMATS)."""

from __future__ import annotations

import json
from pathlib import Path

from torchsplit_core.files import FORMATS, schema_of

if __name__ == "__main__":
    folder = Path(__file__).resolve().parent.parent / "docs" / "schemas"
    folder.mkdir(parents=True, exist_ok=True)
    for name in FORMATS:
        (folder / f"{name}.json").write_text(json.dumps(schema_of(name), indent=1) + "\n")
