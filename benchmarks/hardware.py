"""What only a GPU can show, step by step, written to docs/reference/hardware.md: `make hardware`.

    python -m benchmarks.hardware                      # every step; needs an NVIDIA GPU
    python -m benchmarks.hardware --only products
    python -m benchmarks.hardware --step NAME -o FILE  # one step in this process, its table to FILE

Each step runs in a process of its own with a time limit of its own, so that one that fails, crashes or hangs
costs itself alone; what it had told until then stands on the page. All limits together stay under ten minutes.
Without a GPU it says why and ends with 0, and the page stays as it is. Ends with 1 where a step failed or did
not show what it should.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from torchsplit_core.files.atomic_write import replace_file
from torchsplit_core.hardware import HostReport, NvmlFault, discover_host
from torchsplit_core.hardware.nvml_driver import open_driver
from torchsplit_core.hardware.replay import REPLAY_VARIABLE as REPLAY

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "hardware.md"
MOST_S = 600.0
"""Seconds that all steps and `ASK_S` may take together."""
ASK_S = 60.0
"""Seconds that torch may take to report its version."""
WORDS = 2000
"""Characters kept of the end of a failed step's output."""

Tell = Callable[[str], None]
"""Takes a step's Markdown so far; the last text stays on the page even if the step is cut off."""


@dataclass(frozen=True)
class Step:
    """A step, run in one process. `work` is "module:function": it takes a `Tell` and returns what did not hold."""

    name: str
    title: str
    shows: str
    limit_s: float
    work: str


STEPS = (
    Step(
        "listing",
        "What NVML lists",
        "The driver's own listing as the program reads it: type in the catalogue, memory, MIG mode and instances.",
        15,
        "benchmarks.hardware_steps:listing",
    ),
    Step(
        "torch",
        "What torch finds",
        "Whether this build of torch can use the GPU, and its SMs and memory against the catalogue's.",
        40,
        "benchmarks.hardware_steps:torch_facts",
    ),
    Step(
        "products",
        "SM limits hold",
        "A matrix product of 8192 × 8192 in a green context of several sizes, each in a process of its own as a "
        "measurement is: TFLOP/s may be at most 1.1 × the share of the SMs that the driver gave × those of the "
        "whole GPU.",
        70,
        "benchmarks.hardware_products:products",
    ),
    Step(
        "cuda",
        "`--device cuda` with and without CUDA graphs",
        "Two samples measured end to end, eager and as a captured graph that is replayed.",
        70,
        "benchmarks.hardware_steps:cuda_graphs",
    ),
    Step(
        "sm_profiles",
        "Profiles under SM limits",
        "One sample at several numbers of SMs: more SMs must never be slower by more than a tenth.",
        65,
        "benchmarks.hardware_steps:sm_profiles",
    ),
    Step(
        "predicted",
        "Predicted against measured",
        "Roofline and memory estimate of the catalogue's largest slice (7g) against the whole GPU with MIG off, "
        "which on most types has the same SMs and memory (an A100 108 instead of 98 SMs). Measured memory is torch's "
        "peak; both sides have the same assumed context.",
        70,
        "benchmarks.hardware_steps:predicted",
    ),
    Step(
        "options",
        "Dtypes, torch.compile, host copies, processes",
        "One sample in bfloat16, under torch.compile, with the copies of its inputs and outputs, and as two "
        "processes at once.",
        70,
        "benchmarks.hardware_steps:options",
    ),
    Step(
        "parts",
        "Parts of a cut model in processes of their own",
        "A model cut in two, served on two slices by SMs, a process each, against the whole model there: the same "
        "answer to 1 % of its largest number, and what a request takes.",
        50,
        "benchmarks.hardware_serving:parts",
    ),
    Step(
        "plans",
        "Plans served and measured",
        "`measure` on slices by SMs at 70 % of the plan's throughput (at most 200 requests/s, for the front is one "
        "Python process): one model, two models, two models that share a slice, a cut model; predicted, simulated and "
        "replayed beside measured. Every request has its result, and rates are within 10 % of those predicted.",
        90,
        "benchmarks.hardware_serving:plans",
    ),
)


@dataclass(frozen=True)
class Ran:
    """How a step ended: its Markdown so far, and why it failed or what did not hold ("" for nothing)."""

    step: Step
    text: str
    fault: str
    seconds: float


def run_step(step: Step, command: Sequence[str] | None = None) -> Ran:
    """Run a step within its time limit, in a process group that is killed when it ends."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.md"
        printed = Path(folder) / "printed.txt"
        arguments = [*(command or (sys.executable, "-m", "benchmarks.hardware")), "--step", step.name]
        with printed.open("wb") as stream:
            child = subprocess.Popen(
                [*arguments, "-o", str(told)],
                cwd=ROOT,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name != REPLAY},
            )
            try:
                code: int | None = child.wait(step.limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        text = told.read_text() if told.exists() else ""
        last = printed.read_text(errors="replace").strip()[-WORDS:]
    return Ran(step, text, _fault(step, code, last), time.monotonic() - started)


def _fault(step: Step, code: int | None, printed: str) -> str:
    """Why a step failed, by its exit code (None: timeout) and its last output; "" if it did not."""
    if code == 0:
        return ""
    if code is None:
        why = f"It was still running after {step.limit_s:.0f} s and was ended."
    elif code < 0:
        why = f"Its process died of signal {-code} ({signal.Signals(-code).name})."
    else:
        why = f"It ended with code {code}."
    return why + (f"\n\n```\n{printed}\n```" if printed else "")


def page(host: HostReport, facts: Mapping[str, str], ran: Sequence[Ran]) -> str:
    """The page of one run: the machine, then each step's table or why there is none."""
    cards = ", ".join(dict.fromkeys(gpu.name for gpu in host.gpus))
    lines = "\n".join(f"| {name} | {value} |" for name, value in {"card": cards, **facts}.items())
    bad = [one.step.title for one in ran if one.fault]
    verdict = (
        f"{len(bad)} of {len(ran)} steps failed or did not hold: {'; '.join(bad)}." if bad else "All held."
    )
    parts = [
        "# On a GPU\n",
        "Written by `make hardware` (`python -m benchmarks.hardware`), which runs what only a GPU can show. What no "
        "step here shows stays untested on hardware.\n",
        f"| | |\n|---|---|\n{lines}\n",
        f"{verdict}\n",
        *(section(one) for one in ran),
    ]
    return "\n".join(parts)


def section(ran: Ran) -> str:
    """A step's section of the page."""
    text = f"\n{ran.text.strip()}\n" if ran.text.strip() else ""
    fault = f"\n**Failed.** {ran.fault}\n" if ran.fault else ""
    took = f"{ran.seconds:.0f} s of at most {ran.step.limit_s:.0f}."
    return f"## {ran.step.title}\n\n{ran.step.shows} {took}\n{text}{fault}"


def do_step(step: Step, target: Path) -> int:
    """Run a step in this process and write its Markdown to `target`; return 1 if something did not hold."""
    module, _, name = step.work.partition(":")
    faults: tuple[str, ...] = getattr(import_module(module), name)(lambda text: replace_file(target, text))
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def host_here() -> HostReport:
    """The GPUs of this machine, never a replayed listing."""
    try:
        with open_driver() as driver:
            return discover_host(driver)
    except NvmlFault as fault:
        return HostReport("", 0, None, (), f"No GPU: {fault.words}.")


def machine_facts() -> dict[str, str]:
    """Driver, CUDA, torch and date; a child process imports torch, since the import may crash."""
    with open_driver() as driver:
        version, cuda = driver.versions()
    ask = "import json, torch; print(json.dumps([torch.__version__, str(torch.version.cuda)]))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", ask], capture_output=True, text=True, timeout=ASK_S, check=True
        )
        built, built_for = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        built = built_for = "n/a (torch cannot be imported)"
    return {
        "driver": version,
        "CUDA": f"the driver's {cuda}, torch built for {built_for}",
        "torch": built,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def run_all(
    wanted: Sequence[Step],
    host: HostReport,
    facts: Mapping[str, str],
    target: Path,
    run: Callable[[Step], Ran],
) -> int:
    """Run the steps and write the page; return 1 if a step failed."""
    ran = []
    for step in wanted:
        print(f"== {step.title} (at most {step.limit_s:.0f} s)", file=sys.stderr, flush=True)
        ran.append(run(step))
        print(ran[-1].fault or f"held, {ran[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    replace_file(target, page(host, facts, ran))
    return 1 if any(one.fault for one in ran) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = [step.name for step in STEPS]
    parser.add_argument("--step", choices=names, help="one step in this process, its Markdown to -o FILE")
    parser.add_argument("--only", nargs="+", choices=names, help="these alone; the page then has them alone")
    parser.add_argument(
        "-o", type=Path, default=PAGE, help="the file to write (default docs/reference/hardware.md)"
    )
    options = parser.parse_args()
    by_name = {step.name: step for step in STEPS}
    if options.step:
        return do_step(by_name[options.step], options.o)
    host = host_here()
    if not host.gpus:
        print(f"{host.message} Nothing was run, and {options.o.name} stays as it is.")
        return 0
    wanted = [by_name[name] for name in options.only or names]
    return run_all(wanted, host, machine_facts(), options.o, run_step)


if __name__ == "__main__":
    sys.exit(main())
