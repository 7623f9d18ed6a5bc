"""What DCGM says, by a stand-in for dcgmi: which GPU, which column, nothing where it says nothing. No hardware."""

import time
from pathlib import Path

from tests.support.hardware.listings import replay
from torchsplit_core.hardware.current_state import DcgmFigures, DcgmSampler, host
from torchsplit_core.hardware.current_state.dcgm import parse_dmon, query_dcgm

ROWS = """\
#Entity   SMACT        DRAMA        NVLTX                NVLRX
ID
GPU 1     N/A          N/A          N/A                  N/A
GPU 0     0.000        0.000        0                    0
GPU 1     0.912        0.401        25000000000          N/A
GPU 0     0.250        N/A          9223372036854775792  1000
"""


def dcgmi(folder: Path, text: str) -> None:
    """A dcgmi that prints that for the fields that are asked for, and only for them."""
    (folder / "rows").write_text(text)
    script = f'#!/bin/bash\n[[ "$*" == "dmon -e 1002,1005,1011,1012 -d 500 -c 2" ]] && cat {folder}/rows\n'
    (folder / "dcgmi").write_text(script)
    (folder / "dcgmi").chmod(0o755)


def test_the_last_row_of_each_gpu_counts_and_what_is_not_told_is_none(tmp_path, monkeypatch):
    dcgmi(tmp_path, ROWS)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert query_dcgm() == {0: DcgmFigures(0.25, None, None, 1000.0), 1: DcgmFigures(0.912, 0.401, 2.5e10)}


def test_columns_go_by_their_names_and_other_rows_are_passed_over():
    rows = ("GPU 0 0.1 0.2", "GPU-I 1 0.3 0.4", "GPU 2 0.3", "GPU x 0.1 0.2", "GPU 3 140737488355328.000 -1")
    assert parse_dmon("\n".join(("#Entity DRAMA SMACT", "ID", *rows))) == {
        0: DcgmFigures(0.2, 0.1),
        3: DcgmFigures(),
    }
    assert parse_dmon("Error: unable to establish a connection to the specified host: localhost\n") == {}


def test_without_dcgmi_or_with_one_that_fails_there_are_no_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert query_dcgm() == {}
    (tmp_path / "dcgmi").write_text("#!/no/such/shell\n")
    (tmp_path / "dcgmi").chmod(0o755)
    assert query_dcgm() == {}


def test_nobody_waits_for_dcgm_and_a_replayed_listing_has_none(tmp_path, monkeypatch):
    dcgmi(tmp_path, ROWS)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    listing = replay(tmp_path, "a100_40gb_two_halves.json")
    monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(listing.path))
    dcgm = DcgmSampler()
    monkeypatch.setattr(host, "_DCGM", dcgm)
    assert dcgm.latest() == {}
    end = time.monotonic() + 30
    while not (found := dcgm.latest()):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert found[1].sm_active == 0.912
    assert host.live_gpus()[0][0].counted == DcgmFigures()
    monkeypatch.setattr(type(listing), "origin", None)
    assert host.live_gpus()[0][0].counted.sm_active == 0.25
