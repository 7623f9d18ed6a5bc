"""The fuzz targets: every seed, and every input that once broke its reader, is taken or refused in one message."""

import random
import subprocess
import sys

import pytest

from benchmarks.fuzz import TARGETS, Findings, checked, mutator
from tests.support.paths import ROOT
from torchsplit_core.values import InputFault


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_are_taken_or_refused_and_so_is_what_is_made_of_them(target):
    read, seeds = target.load(), list(target.seeds.values())
    assert [checked(read, data) for data in seeds].count(True) >= max(1, len(seeds) // 2)
    rng = random.Random(0)
    change = mutator(target.shape, lambda data, most: _one_byte(data, rng)[:most])
    for seed in range(20):
        checked(read, change(seeds[seed % len(seeds)], 65536, seed))


def _one_byte(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def test_what_is_found_is_kept_once_a_kind_by_its_shortest_input(tmp_path):
    findings = Findings(tmp_path)

    def broken(data):
        if data.startswith(b"a"):
            raise KeyError(data)
        raise InputFault("here", "is \x1b bad", "Mend it." if data else "")

    for data in (b"aaa", b"a", b"aa", b""):
        try:
            checked(broken, data)
        except Exception as error:  # noqa: BLE001 - as the fuzzer does
            findings.note(error, data)
    assert not checked(broken, b"b"), "what steers a terminal is made harmless by the fault itself"
    kept = [path.read_text() for path in tmp_path.iterdir()]
    assert len(kept) == 2 and sum('"input": "YQ=="' in text for text in kept) == 1


@pytest.mark.repeated
def test_a_target_is_fuzzed_in_a_process_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", "--only", "guard", "--seconds", "1"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[2].split("|")
    assert int(row[2].replace(",", "")) >= 3 and int(row[5]) >= int(row[4]) > 10 and row[6].strip() == "0"
