"""A workspace in the store of the running dashboard, for the tests of a module."""

from pathlib import Path

from torchsplit_core.workspace.store import Store, Workspace


def begun(home: Path, name: str) -> Workspace:
    """An empty workspace of that name, or of the first free one like it.

    A worker whose tests are taken by another and given back sets its module up twice in one store.
    """
    store = Store(home)
    return store.create(store.free_name(name))
