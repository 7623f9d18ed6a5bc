"""Private rooms name their owner; sweeping removes those of the dead and nothing else."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from torchsplit_core.isolation import private_temp_dir, remove_stale_temp_dirs
from torchsplit_core.isolation.sandbox.temp_dirs import FOREIGN_STALE_S, STALE_S

NAME = r"torchsplit-(\d+)-([0-9a-f]{8})t(\d+)-[a-z0-9_]{8}"

OWNER = """
import time
from torchsplit_core.isolation import private_temp_dir
with private_temp_dir() as room:
    (room / "file").write_text("x")
    print(room, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """A temporary folder of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def aged(path: Path, seconds: float) -> Path:
    path.mkdir(parents=True)
    (path / "upload.pt2").write_bytes(b"x")
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_a_room_is_private_names_its_owner_and_goes(temporary):
    with private_temp_dir() as room:
        assert room.parent == temporary and room.stat().st_mode & 0o777 == 0o700
        match = re.fullmatch(NAME, room.name)
        assert match is not None and int(match[1]) == os.getpid()
        (room / "file").write_text("x")
        assert remove_stale_temp_dirs() == 0 and (room / "file").exists()
    assert list(temporary.iterdir()) == []


def test_the_room_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(temporary):
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        room = Path(owner.stdout.readline().strip())
        assert remove_stale_temp_dirs() == 0 and room.exists()
        owner.kill()
        owner.wait()
        assert room.exists() and remove_stale_temp_dirs() == 1 and not room.exists()


def test_a_later_process_with_the_owners_number_does_not_keep_its_room(temporary):
    with private_temp_dir() as room:
        match = re.fullmatch(NAME, room.name)
        assert match is not None
        aged(temporary / room.name.replace(f"t{match[3]}-", "t1-"), 0)
        assert remove_stale_temp_dirs() == 1 and list(temporary.iterdir()) == [room]


def test_what_is_not_certainly_rubbish_stays(temporary, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    kept = aged(elsewhere / "kept", 10 * FOREIGN_STALE_S)
    stay = [
        aged(temporary / "torchsplit-abcdefgh", STALE_S / 2),
        aged(temporary / "torchsplit-tests-abcdefgh", 10 * STALE_S),
        aged(temporary / "torchsplit-12345-00000000t99-abcdefgh", FOREIGN_STALE_S / 2),  # of another machine
        aged(temporary / "torchsplit-mine", 10 * STALE_S),
        aged(temporary / "another-abcdefgh", 10 * STALE_S),
    ]
    link = temporary / "torchsplit-ijklmnop"
    link.symlink_to(kept)
    os.utime(link, (0, 0), follow_symlinks=False)
    if os.geteuid() == 0:
        others = aged(temporary / "torchsplit-qrstuvwx", 10 * STALE_S)
        os.chown(others, 65534, 65534)
        stay.append(others)
    aged(temporary / "torchsplit-yzabcdef", 2 * STALE_S)
    aged(temporary / "torchsplit-12345-00000000t99-ijklmnop", 2 * FOREIGN_STALE_S)
    assert remove_stale_temp_dirs() == 2
    assert set(temporary.iterdir()) == {*stay, link} and (kept / "upload.pt2").exists()


def test_a_room_goes_however_deep_and_closed_it_is_and_no_link_is_followed(temporary, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("kept")
    outside.chmod(0o750)
    here = Path.cwd()
    with private_temp_dir() as room:
        (room / "link").symlink_to(outside)
        os.chdir(room)
        try:
            for number in range(300):
                Path(f"d{number % 3}" * 20).mkdir()
                os.symlink(outside, "link") if number else None
                os.chdir(f"d{number % 3}" * 20)
            Path("closed").mkdir(mode=0)
        finally:
            os.chdir(here)
        (room / ("d0" * 20)).chmod(0)
    assert list(temporary.iterdir()) == []
    assert (outside / "kept").read_text() == "kept" and outside.stat().st_mode & 0o777 == 0o750
