"""The page of this machine: with no GPU, with a replayed listing of GPUs and slices."""

from dataclasses import replace

from app.host.page import gpu_rows, slice_rows
from tests.support.app.page import said
from tests.support.hardware.listings import replay
from torchsplit_core.hardware import CoreTimes, DcgmFigures, live_host


def test_without_a_gpu_the_page_says_so_and_shows_the_machine(page, workspace, monkeypatch):
    monkeypatch.delenv("TORCHSPLIT_NVML_REPLAY", raising=False)
    test = page("host", workspace)
    figures = {element.label: element.value for element in test.metric}
    assert set(figures) == {"Cores", "Cores at work", "Memory in use", "Disk free"}
    assert figures["Cores at work"] == "n/a" and figures["Memory in use"].endswith("iB")
    if not live_host().gpus:
        assert "No GPU" in said(test) and not test.dataframe


def test_gpus_and_slices_are_listed_with_what_the_driver_tells(page, workspace, tmp_path, monkeypatch):
    def busy(data):
        data["gpus"][0]["state"] |= {"memory_used_bytes": 3 * 2**30, "busy_percent": 42}

    listing = replay(tmp_path, "a100_40gb_two_halves.json", busy)
    monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(listing.path))
    host = live_host()
    (row,) = gpu_rows(host.gpus)
    assert (row["in use"], row["at work"], row["MIG"]) == ("3\u202fGiB", "42\u202f%", "on")
    assert (row["power"], row["held down by"], row["processes"]) == ("212\u202fW", "nothing", "0")
    assert {row[name] for name in ("SMs at work", "memory at work", "NVLink out", "NVLink in")} == {"n/a"}
    counted = replace(host.gpus[0], counted=DcgmFigures(0.5, 0.25, 2.5e9, 0.0))
    (row,) = gpu_rows((counted,))
    assert [row[name] for name in ("SMs at work", "memory at work", "NVLink out")] == [
        "50\u202f%", "25\u202f%", "2.5\u202fGB/s",
    ]  # fmt: skip
    assert row["NVLink in"] == "0\u202fB/s"
    assert [row["profile"] for row in slice_rows(host.gpus)] == ["3g.20gb", "3g.20gb"]
    test = page("host", workspace)
    assert "Replayed listing" in said(test) and len(test.dataframe) == 2


def test_what_a_driver_does_not_tell_is_no_zero(tmp_path, monkeypatch):
    listing = replay(tmp_path, "t4_without_mig.json", lambda data: data["gpus"][0].update(state={}))
    monkeypatch.setenv("TORCHSPLIT_NVML_REPLAY", str(listing.path))
    (row,) = gpu_rows(live_host().gpus)
    assert row["MIG"] == "has none"
    assert [row[name] for name in ("in use", "at work", "SM clock", "power", "held down by")] == ["n/a"] * 5


def test_the_share_of_the_cores_at_work_is_that_since_the_last_look(tmp_path):
    (tmp_path / "stat").write_text("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1\n")
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 40 kB\nHugePages_Total: 0\n")
    host = live_host(tmp_path)
    assert host.times == CoreTimes(20, 100) and (host.memory_bytes, host.available_bytes) == (
        102400,
        40960,
    )
    assert CoreTimes(50, 160).share_since(CoreTimes(20, 100)) == 0.5
    assert CoreTimes(50, 160).share_since(CoreTimes(50, 160)) is None
    nothing = live_host(tmp_path / "none")
    assert (nothing.times, nothing.memory_bytes, nothing.available_bytes) == (None, None, None)
