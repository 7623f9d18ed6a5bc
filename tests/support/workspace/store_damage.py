"""A store whose database is damaged at random: everything a page asks of it is answered, or one message."""

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.workspace.storage_writer import request
from torchsplit_core import jobs
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.archive import export_workspace
from torchsplit_core.workspace.store import Store, Workspace

CALLS: tuple[Callable[[Workspace], object], ...] = (
    lambda own: own.store.workspaces(), lambda own: own.store.check(), lambda own: own.name,
    lambda own: own.artifacts(), lambda own: own.get("plan_request", "r1"),
    lambda own: own.setting("scenario"), lambda own: jobs.statuses(own),
    lambda own: own.put("plan_request", "new", request()), lambda own: own.remove("plan_request", "r2"),
    lambda own: export_workspace(own), lambda own: own.store.copy(own.id, own.store.free_name("copy")),
    lambda own: own.store.delete(own.id),
)  # fmt: skip


def damage(path: Path, rng: random.Random, bytes_changed: int) -> None:
    """Change bytes of a file anywhere."""
    data = bytearray(path.read_bytes())
    for _ in range(bytes_changed):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def try_damaged(store: Store, identity: str, folder: Path, seeds: Iterable[int]) -> int:
    """Damage a copy of the store a seed and call everything; how many calls were refused. Anything else raises."""
    told = 0
    for seed in seeds:
        rng = random.Random(seed)
        home = folder / f"damaged{seed}"
        shutil.copytree(store.root, home)
        damage(home / "workspaces.sqlite", rng, rng.choice([1, 20, 400, 4000]))
        if rng.random() < 0.2:
            with (home / "workspaces.sqlite").open("r+b") as stream:
                stream.truncate(rng.randrange(1, 40_000))
        try:
            opened = Workspace(Store(home), identity)
        except InputFault:
            told += 1
        else:
            for call in CALLS:
                try:
                    call(opened)
                except InputFault:
                    told += 1
        shutil.rmtree(home)
    return told
