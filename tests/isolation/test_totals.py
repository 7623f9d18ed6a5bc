"""Limits of a child and all it started together: tasks, memory, bytes of files."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from torchsplit_core.isolation import ChildFault, Limits, run_limited
from torchsplit_core.isolation.launch import ConfinedChild
from torchsplit_core.isolation.limits import default_tasks
from torchsplit_core.isolation.usage_monitor import tree_bytes

pytestmark = pytest.mark.slow

MIB = 2**20
STAY_S = 60.0
"""Longer than the count takes to see it, on any machine."""


def call(function: str, limits: Limits, **arguments: Any) -> Any:
    return run_limited(
        f"tests.support.isolation.targets:{function}", arguments, limits=limits, subject="the model"
    )


@pytest.mark.parametrize("threads", [False, True])
def test_too_many_processes_or_threads_end_the_work(counting, threads):
    with pytest.raises(
        ChildFault,
        match=r"the model: ran \d+ processes and threads at once.*above the limit of 12.*Limits\.tasks",
    ):
        call("crowd", Limits(tasks=12), count=16, threads=threads, stay_s=STAY_S)


def test_as_many_as_are_allowed_do_not(counting):
    assert call("crowd", Limits(tasks=12), count=8, threads=False, stay_s=0.6) == 8
    assert default_tasks() >= 512


def test_a_limit_passed_once_the_result_was_given_takes_nothing_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a finished child leaves behind may pass a limit before it is ended; without a result that is the fault."""
    monkeypatch.setattr(ConfinedChild, "exceeded_limit", lambda child: {"limit": "tasks", "value": 99})
    assert call("echo", Limits(tasks=12), value="done")["got"] == {"value": "done"}
    for function in ("leave", "error"):
        with pytest.raises(ChildFault, match="ran 99 processes and threads at once"):
            call(function, Limits(tasks=12))


def test_the_kernel_itself_stops_a_storm_of_forks_in_namespaces(monkeypatch):
    """Faster than any count: so many at once are refused, or the count has ended the work before."""
    monkeypatch.setenv("TORCHSPLIT_ISOLATION", "namespaces")
    with pytest.raises(ChildFault, match=r"BlockingIOError|processes and threads at once"):
        call("crowd", Limits(tasks=12), count=2000, threads=False, stay_s=STAY_S)


@pytest.mark.parametrize("kind", ["own", "nameless"])
def test_memory_of_all_processes_together_is_limited(counting, kind):
    limits = Limits(total_memory_bytes=200 * MIB)
    with pytest.raises(
        ChildFault, match=r"out of memory: .* took \d+ MiB, above the limit of 200 MiB"
    ) as caught:
        call("hoard_together", limits, kind=kind, processes=4, bytes=64 * MIB, stay_s=STAY_S)
    assert caught.value.kind == "out_of_memory"


def test_memory_that_processes_share_counts_once(counting):
    limits = Limits(total_memory_bytes=260 * MIB)
    assert call("hoard_together", limits, kind="shared", processes=4, bytes=64 * MIB, stay_s=1.0) == 64 * MIB


@pytest.mark.parametrize("kind", ["named", "nameless", "closed", "empty"])
def test_files_of_the_room_are_limited_together(counting, kind):
    limits = Limits(total_file_bytes=(1 if kind == "empty" else 2) * MIB)
    with pytest.raises(
        ChildFault, match=r"the model: wrote \d+ MiB of files.*above the limit of [12] MiB.*total_file_bytes"
    ):
        call("fill", limits, kind=kind, count=4, stay_s=STAY_S)


def test_what_a_writable_folder_held_before_does_not_count(counting, tmp_path):
    (tmp_path / "before").write_bytes(b"x" * 4 * MIB)
    limits = Limits(total_file_bytes=2 * MIB)
    answer = run_limited(
        "tests.support.isolation.targets:fill", {"kind": "named", "count": 1, "stay_s": 0.6}, limits=limits,
        writable=[tmp_path],
    )  # fmt: skip
    assert answer == "written"


def test_folders_too_deep_to_count_are_ended_and_removed(counting):
    before = set(Path(tempfile.gettempdir()).iterdir())
    with pytest.raises(ChildFault, match="too deep to count"):
        call("nest", Limits(), levels=30, stay_s=STAY_S)
    new = {path.name for path in set(Path(tempfile.gettempdir()).iterdir()) - before}
    assert not [name for name in new if name.startswith(f"torchsplit-{os.getpid()}-")]


def test_a_tree_counts_what_it_takes_and_follows_no_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x" * MIB)
    (tmp_path / "link").symlink_to("/")
    assert MIB <= tree_bytes(str(tmp_path)) < MIB + 64 * 1024
