"""The schemas of Kubernetes, read once."""

from collections.abc import Iterator
from functools import cache

import pytest
from kubernetes_validate import utils


@pytest.fixture(scope="session", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """The definitions of a version are megabytes, which the validator reads anew for each manifest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", cache(utils.schema_contents))
        yield
