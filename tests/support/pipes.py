"""Files that have no size beforehand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pipe_with(content: bytes) -> Iterator[str]:
    """The path of a pipe that holds these bytes, at most the 64 KiB that fit, and ends after them."""
    reading, writing = os.pipe()
    try:
        os.write(writing, content)
        os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)
