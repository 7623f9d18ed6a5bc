"""`make hardware` without a GPU: what a step's end costs, what the page says, and how figures are judged."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

# The benchmarks are scripts of the repository, no installed package.
from benchmarks import hardware
from benchmarks.hardware import ASK_S, MOST_S, STEPS, Ran, Step, page, run_all, run_step
from benchmarks.hardware_products import Product, product_faults, product_table
from benchmarks.hardware_steps import compared, sm_faults, sm_table
from torchsplit_core.hardware import HostGpu, HostReport
from torchsplit_core.profiling import MeasurementSettings
from torchsplit_core.values import LatencyPercentiles, MemoryParts, Percentile, ProfileRow

STEP = Step("try", "A try", "It shows a try.", 20, "nowhere:nothing")
HOST = HostReport("CPU", 2, 8.0, (HostGpu(0, "NVIDIA H100", "GPU-1", 79.6, None, False),), "1 GPU.")
NO_GPU = HostReport("CPU", 2, 8.0, (), "No GPU: the driver is not here.")


def ran(folder: Path, body: str, limit_s: float = 120) -> Ran:
    """A step whose process runs `body`, in which `told` is the file for its Markdown."""
    script = folder / "step.py"
    script.write_text(f"import sys, os, time, pathlib\ntold = pathlib.Path(sys.argv[-1])\n{body}\n")
    return run_step(replace(STEP, limit_s=limit_s), (sys.executable, str(script)))


def test_a_step_that_holds_has_its_table(tmp_path):
    found = ran(tmp_path, "told.write_text('| a table |')")
    assert (found.text, found.fault) == ("| a table |", "")


def test_a_step_that_fails_keeps_what_it_told_and_says_why(tmp_path):
    found = ran(tmp_path, "told.write_text('| half |')\nprint('no such device')\nsys.exit(3)")
    assert found.text == "| half |"
    assert "ended with code 3" in found.fault and "no such device" in found.fault


def test_a_step_that_crashes_is_told_by_its_signal(tmp_path):
    assert "signal 11 (SIGSEGV)" in ran(tmp_path, "os.kill(os.getpid(), 11)").fault


@pytest.mark.repeated
def test_a_step_that_hangs_is_ended_with_all_it_started(tmp_path):
    found = ran(
        tmp_path,
        "import subprocess\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "told.write_text(str(child.pid))\ntime.sleep(600)",
        limit_s=3,
    )
    assert "still running after 3 s" in found.fault
    deadline = time.monotonic() + 60
    while _lives(int(found.text)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(int(found.text))


def _lives(pid: int) -> bool:
    """A process that has ended may still be listed until its parent asks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_replayed_listing_does_not_reach_a_step(tmp_path, monkeypatch):
    monkeypatch.setenv(hardware.REPLAY, "somewhere.json")
    assert ran(tmp_path, f"told.write_text(os.environ.get('{hardware.REPLAY}', 'none'))").text == "none"


def test_every_step_goes_on_after_another_and_the_page_has_all(tmp_path):
    ends = iter([Ran(STEP, "| one |", "It ended with code 1.", 1.0), Ran(STEP, "| two |", "", 2.0)])
    target = tmp_path / "page.md"
    code = run_all((STEP, replace(STEP, title="B")), HOST, {"driver": "570"}, target, lambda step: next(ends))
    text = target.read_text()
    assert code == 1
    assert "| card | NVIDIA H100 |" in text and "| driver | 570 |" in text
    assert "| one |" in text and "**Failed.** It ended with code 1." in text and "| two |" in text
    assert "1 of 2 steps failed" in text


def test_a_run_that_is_cut_off_leaves_the_page_as_it_was(tmp_path):
    def cut(step):
        raise KeyboardInterrupt

    target = tmp_path / "page.md"
    target.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        run_all((STEP,), HOST, {}, target, cut)
    assert target.read_text() == "before" and list(tmp_path.iterdir()) == [target]


def test_without_a_gpu_it_says_why_and_writes_nothing(tmp_path, monkeypatch, capsys):
    target = tmp_path / "hardware.md"
    monkeypatch.setattr(hardware, "host_here", lambda: NO_GPU)
    monkeypatch.setattr(sys, "argv", ["hardware", "-o", str(target)])
    assert hardware.main() == 0
    assert "the driver is not here" in capsys.readouterr().out and not target.exists()


def test_a_replayed_listing_is_no_hardware(monkeypatch):
    """A GPU of a listing in a file must never make a page of measurements."""
    from tests.support.hardware.listings import DATA

    monkeypatch.setenv(hardware.REPLAY, str(next(DATA.glob("*.json"))))
    assert "Replayed" not in hardware.host_here().message


def test_all_limits_together_stay_under_ten_minutes_and_every_step_exists():
    assert sum(step.limit_s for step in STEPS) + ASK_S <= MOST_S == 600
    for step in STEPS:
        module, _, name = step.work.partition(":")
        text = (hardware.ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
        assert re.search(rf"^def {name}\(\s*tell: Tell", text, re.MULTILINE), step.name


def test_a_page_where_all_held_says_so():
    assert "All held." in page(HOST, {}, [Ran(STEP, "| a |", "", 1.0)])


WHOLE = Product(132, 132, {"bfloat16": 660.0, "float32": 50.0})


def test_a_limit_holds_up_to_a_tenth_over_the_share_of_the_sms_given():
    just = Product(64, 66, {"bfloat16": 363.0, "float32": 27.5})
    assert product_faults((WHOLE, just)) == ()
    over = Product(64, 66, {"bfloat16": 364.0, "float32": 25.0})
    (fault,) = product_faults((WHOLE, over))
    assert fault == "66 SMs, bfloat16: 364.0 TFLOP/s, at most 363.0 if the limit held"


def test_a_count_that_the_driver_does_not_tell_proves_nothing():
    (fault,) = product_faults((WHOLE, Product(16, None, {"bfloat16": 1.0, "float32": 1.0})))
    assert "did not tell" in fault
    assert product_faults((Product(0, None, {}),)) == ("torch does not tell the SMs of the whole GPU",)


def test_the_table_of_products_has_speeds_over_their_share():
    text = product_table((WHOLE, Product(64, 66, {"bfloat16": 330.0, "float32": 30.0}, "1,980 MHz")))
    assert text.splitlines()[-1] == "| 64 | 66 | 330.0 | 1.00 | 30.0 | 1.20 | 1,980 MHz |"


def row(batch: int, rate: float, *, basis: str = "measured", memory: str = "measured") -> ProfileRow:
    known = Percentile(1000 * batch / rate)
    return ProfileRow(
        "whole", "H100-SXM5-80GB", None, batch, 1, rate, 1000 * batch / rate, 0.8 * rate, 1.2 * rate, 2.0,
        basis, "cuda:0", LatencyPercentiles(9, known, known, known),
        MemoryParts(1.0, 0.4, 0.1, 0.5, memory),  # type: ignore[arg-type]
    )  # fmt: skip


def test_more_sms_that_are_slower_are_told():
    found = [("sm:64", 66, row(8, 500.0)), ("cuda", 132, row(8, 490.0)), ("sm:16", 16, row(8, 100.0))]
    assert sm_faults(found) == ()
    found[1] = ("cuda", 132, row(8, 440.0))
    assert sm_faults(found) == ("132 SMs serve 440 requests/s, 66 SMs 500",)
    assert "did not tell" in sm_faults([("sm:8", None, row(8, 1.0))])[0]
    assert "| cuda | 132 | whole GPU | measured | 18.182 | 18.182 | 440 | 2.000 | 1.500 |" in sm_table(found)


def test_predictions_stand_beside_measurements_of_the_same_batch():
    estimated = [row(1, 100.0), row(8, 100.0)]
    found = compared("bert", [row(1, 119.0), row(8, 121.0), row(32, 1.0)], estimated)
    assert [(line[1], line[4], line[5]) for line in found] == [("1", "1.19", "yes"), ("8", "1.21", "no")]
    assert found[0][6:] == ("2.000", "2.000", "1.000")


def test_memory_that_was_not_measured_is_not_compared():
    assert compared("bert", [row(1, 100.0, memory="estimated")], [row(1, 100.0)])[0][6:] == ("n/a",) * 3


@pytest.mark.repeated
@pytest.mark.torch
def test_products_and_profiles_run_where_there_is_no_gpu():
    """The calls of the steps themselves, on the processor; small."""
    from dataclasses import asdict

    from benchmarks.hardware_products import product_here
    from benchmarks.hardware_steps import cuda_graphs, full_slice_rows, options
    from torchsplit_core import workflow
    from torchsplit_core.hardware import choose_devices

    (cpu,) = choose_devices("cpu")
    found = product_here(asdict(cpu), size=64, runs=3)
    assert found["given"] is None and set(found["tflops"]) == {"bfloat16", "float32"}
    rows = full_slice_rows(workflow.trace("sample:diamond"), "H100-SXM5-80GB", (1, 8))
    assert [(one.profile, one.batch_size) for one in rows] == [("7g.80gb", 1), ("7g.80gb", 8)]
    ways = {
        "copies": MeasurementSettings(host_copies=True),
        "cast": MeasurementSettings(0.02, dtype="bfloat16", processes=(1, 2)),
    }
    seen = []
    (fault,) = options(seen.append, "cpu", "diamond", ways)
    assert "copies" in fault and "host copies" in fault
    assert seen[-1].count("| cast | 1 | 8 |") == 1 and seen[-1].count("| cast | 2 | 8 |") == 1
    told = []
    faults = cuda_graphs(told.append, "cpu", ("diamond",))
    # A processor has no CUDA graphs: that half fails alone, and the table has the other.
    assert len(faults) == 1 and "are asked for on the processor" in faults[0]
    assert told[-1].count("| diamond |") == 2 and "captured" not in told[-1]
