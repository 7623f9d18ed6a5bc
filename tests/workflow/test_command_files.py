"""Every file that a command writes is read by the commands that say they read it, in one walk through all of them."""

import csv
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli import command
from torchsplit_core.files import read_file

pytestmark = pytest.mark.torch

FILES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "trace": (("parts", "run"), ("graph",)),
    "draw": (("graph",), ("picture",)),
    "profile": (("parts", "run"), ("profile",)),
    "partition": (("parts", "run", "profile", "partition request"), ("partition", "parts")),
    "export": (("profile",), ("rows",)),
    "import": (("rows", "predicted rows", "profile"), ("profile",)),
    "estimate": (("rows",), ("predicted rows",)),
    "request": (("profile", "partition", "llm points", "prices"), ("plan request",)),
    "windows": (("plan request", "demand trace"), ("plan request",)),
    "profile-llm": ((), ("llm points",)),
    "history": (("job history", "plan request"), ("hours", "plan request")),
    "plan": (("plan request", "prices"), ("plan", "plan request", "day")),
    "sweep": (("plan request",), ("sweep",)),
    "transition": (("plan", "plan request", "host state"), ("transition",)),
    "simulate": (
        ("plan", "plan request", "simulation request", "day", "demand trace"),
        ("simulation", "simulation request", "simulated requests", "day replay"),
    ),
    "size": ((), ("sizes", "simulation request")),
    "serve": (("plan", "plan request"), ()),
    "measure": (("plan", "plan request"), ("measurement",)),
    "deploy": (("plan", "plan request", "day"), ("deployment", "routes")),
    "route": (("routes",), ()),
    "capture": ((), ("host state", "site program")),
    "apply": (("plan", "plan request", "host state"), ("boot unit",)),
    "place": (("placement request",), ("placement", "placement request", "frontier")),
    "strategy": (("strategy request",), ("strategy", "program")),
    "train": (("strategy", "strategy request", "run"), ("fleet files", "run")),
    "weights": (("run",), ("weights",)),
    "estimate-training": (("training rows",), ("training rows",)),
    "estimate-serving": (("serving rows",), ("serving rows",)),
    "evaluate": (("evaluation",), ("evaluation",)),
    "trace-report": (("spans",), ("span report",)),
    "app": ((), ()),
    "completion": ((), ()),
}
"""What each command reads and writes, beside models of its users and its own folder for stored work."""
ANSWERS = {
    "picture", "hours", "sweep", "simulation", "measurement", "deployment", "placement", "frontier", "program",
    "fleet files", "sizes", "weights", "transition", "site program", "boot unit", "simulated requests", "span report",
    "day replay",
}  # fmt: skip
"""What is read by people, by the dashboard, or by other programs."""
ELSEWHERE = {
    ("plan", "serve"): "tests/workflow/test_deployed_servers.py",
    ("plan request", "serve"): "tests/workflow/test_deployed_servers.py",
    ("routes", "route"): "tests/workflow/test_deployed_servers.py",
    ("llm points", "request"): "tests/cli/test_profile_llm.py",
    ("partition request", "partition"): "tests/cli/test_examples.py",
    ("run", "train"): "tests/training",
    **{("run", name): "tests/checkpoints" for name in ("trace", "profile", "partition", "weights")},
    ("evaluation", "evaluate"): "tests/evaluation",
}
"""Where it is shown of a command that does not end by itself, takes minutes, or reads what no command writes."""
EXAMPLES = ROOT / "examples"


class Walk:
    """Runs commands in a folder, and keeps who wrote and who read which kind of file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kinds: dict[Path, tuple[str, str]] = {}
        self.written: set[tuple[str, str]] = set()
        self.read: set[tuple[str, str]] = set()
        self.used: set[tuple[str, str]] = set()

    def go(self, name: str, *words: str | Path, **writes: str) -> None:
        """A command as it is typed; `writes` has by its option (`o`, `save_request`, …) what it writes: KIND=FILE."""
        told = [str(word) for word in words]
        for word in words:
            if word in self.kinds:
                kind, writer = self.kinds[Path(word)]
                self.read.add((kind, name))
                self.used.add((writer, kind))
        for option, text in writes.items():
            kind, _, file = text.partition("=")
            told += [
                f"-{option}" if len(option) == 1 else f"--{option.replace('_', '-')}",
                str(self.folder / file),
            ]
            self.has(file, kind, name)
        assert command.main([name, *told]) == 0, (name, told)
        for text in writes.values():
            assert (self.folder / text.partition("=")[2]).exists(), text

    def has(self, file: str, kind: str, writer: str) -> Path:
        """That the command wrote this file."""
        path = self.folder / file
        self.kinds[path] = kind, writer
        self.written.add((writer, kind))
        return path

    def __call__(self, file: str) -> Path:
        return self.folder / file


def models(walk: Walk) -> None:
    """Graph, profile, cuts, parts and their own."""
    quick = ("--device", "cpu:1c", "--batch-sizes", "2", "--point-budget", "0.01", "--gpu-types", "A30-24GB")
    walk.go("trace", "sample:diamond", o="graph=graph.json")
    walk.go("draw", walk("graph.json"), o="picture=graph.svg")
    walk.go("profile", "sample:diamond", *quick, o="profile=diamond.json")
    walk.go(
        "partition", "sample:diamond", "--profile", walk("diamond.json"), o="partition=cuts.json",
        export="parts=parts",
    )  # fmt: skip
    part = walk.has("parts/stage0.pt2", "parts", "partition")
    walk.go("trace", part, o="graph=part_graph.json")
    walk.go("profile", part, "--trust", *quick, o="profile=part.json")
    walk.go("partition", part, "--profile", walk("part.json"), o="partition=part_cuts.json")


def tables(walk: Walk) -> None:
    """Profiles as tables and back, and predicted rows."""
    walk.go("export", walk("diamond.json"), o="rows=rows.csv")
    walk.go("import", walk("rows.csv"), o="profile=again.json")
    walk.go("import", walk("again.json"), o="profile=twice.json")
    assert read_file(walk("again.json"))[1].rows == read_file(walk("diamond.json"))[1].rows
    walk.go("export", "library:bert", o="rows=library.csv")
    with walk("library.csv").open() as file:
        rows = list(csv.DictReader(file))
    with walk("query.csv").open("w") as file:
        asked = csv.DictWriter(
            file, ["model", "compute_slices", "batch_size", "processes"], extrasaction="ignore"
        )
        asked.writeheader()
        asked.writerows(rows[:5])
    walk.go("estimate", walk("library.csv"), walk("query.csv"), o="predicted rows=predicted.csv")
    walk.go("import", walk("predicted.csv"), o="profile=predicted.json")
    walk.go("request", walk("predicted.json"), "--gpus", "A100-80GB", o="plan request=predicted_request.json")


def plans(walk: Walk) -> None:
    """Plans of cores with a cut, of GPUs without models, and all that is made of them."""
    walk.go(
        "request", walk("diamond.json"), "--candidates", walk("cuts.json"), "--gpus", "cpu0=CPU-1c", "--demand",
        "diamond=5", "--sharing", "fractional", "--forbid", "diamond=whole", o="plan request=request.json",
    )  # fmt: skip
    request = walk("request.json")
    walk.go(
        "plan", request, "--plan-at", "low", o="plan=low.json", save_request="plan request=low_request.json"
    )
    low = (walk("low.json"), "--request", walk("low_request.json"))
    jobs = walk.has("sacct.csv", "job history", "")
    jobs.write_text((EXAMPLES / "history" / "sacct.csv").read_text())
    walk.go("history", jobs, o="hours=hours.csv")
    walk.go(
        "history", jobs, "--request", request, "--map", "bert=diamond", "--peak",
        o="plan request=week_request.json",
    )  # fmt: skip
    walk.go("plan", walk("week_request.json"), o="plan=week.json")
    walk.go("sweep", request, "--vary", "demand:diamond=1,2", o="sweep=sweep.csv")
    few = ("--requests", "200", "--replications", "1")
    walk.go(
        "simulate", *low, *few, o="simulation=simulation.json", save_request="simulation request=asked.json"
    )
    walk.go("simulate", walk("asked.json"), o="simulation=again_simulation.json")
    walk.go(
        "size", "llama-3.1-8b", "--gpus", "L40S-48GB:whole", "--requests", "30", o="sizes=sizes.csv",
        save_request="simulation request=engine.json",
    )  # fmt: skip
    walk.go("simulate", walk("engine.json"), o="simulation=engine_simulation.json")
    walk.go(
        "simulate", EXAMPLES / "simulations" / "chats_on_two_engines.json", *few, o="simulation=chats.json",
        requests_out="simulated requests=chats.csv",
    )  # fmt: skip
    walk.go("measure", *low, "--duration-s", "1", o="measurement=measurement.json")
    walk.go("deploy", *low, o="deployment=deployed")
    for folder in ("compose", "systemd", "slurm"):
        assert read_file(walk.has(f"deployed/{folder}/routes.json", "routes", "deploy"))[1].models
    prices = walk.has("prices.csv", "prices", "")
    prices.write_text("gpu_type,per_hour,currency,date\nA30-24GB,0.5,EUR,2026-01-02\n")
    walk.go(
        "request",
        walk("again.json"),
        "--gpus",
        "A30-24GB",
        "--prices",
        prices,
        o="plan request=gpus_request.json",
    )
    walk.go("plan", walk("gpus_request.json"), "--prices", prices, o="plan=gpus.json")
    assert read_file(walk("gpus.json"))[1].cost_per_hour == 0.5
    walk.go("deploy", walk("gpus.json"), "--request", walk("gpus_request.json"), o="deployment=gpus")
    written = {path.name for path in walk("gpus").iterdir()}
    # The table says nothing of what the model is: a placeholder runs where images can be named.
    assert {"mig-parted.yaml", "apply-mig.sh", "kubernetes", "compose", "systemd", "slurm"} <= written


def days(walk: Walk) -> None:
    """A day cut from a trace, planned, and its schedule."""
    trace = walk.has("trace.csv", "demand trace", "")
    rows = "".join(f"{3600 * hour},{1 + hour // 12}\n" for hour in range(24))
    trace.write_text(f"time_s,diamond\n{rows}")
    walk.go(
        "windows", walk("gpus_request.json"), "--trace", trace, "--windows", "2", "--map",
        "diamond=sample:diamond", o="plan request=windows.json",
    )  # fmt: skip
    walk.go("plan", walk("windows.json"), "--over-windows", o="day=day.json")
    walk.go(
        "simulate", walk("day.json"), "--request", walk("windows.json"), "--trace", trace, "--map",
        "diamond=sample:diamond", "--requests", "1000", "--replications", "1", o="day replay=replay.json",
    )  # fmt: skip
    walk.go("deploy", walk("day.json"), "--request", walk("windows.json"), o="deployment=schedule")
    assert walk("schedule/SCHEDULE.md").exists()


def hosts(walk: Walk) -> None:
    """What stands on a host, and the program that a site runs there."""
    listing = walk("list.txt")
    listing.write_text("GPU 0: NVIDIA A30 (UUID: GPU-1)\n")
    walk.go("capture", "--smi", listing, "--host", "node0", o="host state=state.json")
    walk.go(
        "transition", walk("gpus.json"), "--from", walk("state.json"), "--request", walk("gpus_request.json"),
        "--evict-foreign", o="transition=transition.json",
    )  # fmt: skip
    walk.go(
        "apply", walk("gpus.json"), "--from", walk("state.json"), "--request", walk("gpus_request.json"),
        "--evict-foreign", boot_unit="boot unit=boot",
    )  # fmt: skip
    walk.go("capture", "--script", o="site program=capture.py")
    spans = walk.has("spans.jsonl", "spans", "")
    _, _, lines = (ROOT / "benchmarks" / "data" / "fuzz" / "host" / "trace").read_text().partition("\n")
    spans.write_text(lines)
    walk.go("trace-report", spans, o="span report=spans.txt")


def trainings(walk: Walk) -> None:
    """Placements, strategies, and rows of trainings."""
    walk.go(
        "place", "llama-3.1-8b", "--fleet", "1x2xA100-80GB", "--time-limit", "5", o="placement=placement.json",
        request="placement request=place.json", frontier="frontier=frontier.json",
    )  # fmt: skip
    walk.go("place", walk("place.json"), "--time-limit", "5", o="placement=again_placement.json")
    asked = walk.has("two_ranks.json", "strategy request", "")
    asked.write_text((EXAMPLES / "training" / "two_ranks.json").read_text())
    walk.go("strategy", asked, o="strategy=strategy.json", export="program=train.py")
    fleet = ("--write-fleet", "slurm", "--nnodes", "1", "--processes", "2")
    for number, one in enumerate((walk("strategy.json"), asked)):
        walk.go("train", "sample:llama", "--strategy", one, *fleet, o=f"fleet files=fleet{number}")
    measured = walk.has("measured.csv", "training rows", "")
    measured.write_text((ROOT / "benchmarks" / "data" / "training_steps.csv").read_text())
    walk.go("estimate-training", measured, o="training rows=predicted_steps.csv")
    again = walk("predicted_steps.csv")
    serving = walk.has("serving.csv", "serving rows", "")
    serving.write_text((ROOT / "tests" / "serving_estimates" / "data" / "rows.csv").read_text())
    walk.go("estimate-serving", serving, o="serving rows=predicted_serving.csv")
    walk.go("estimate-serving", walk("predicted_serving.csv"), o="serving rows=again_serving.csv")
    walk.go("estimate-training", again, "--known", again, o="training rows=again_steps.csv")


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.timeout(300)
def test_what_a_command_writes_the_next_one_reads(tmp_path):
    walk = Walk(tmp_path)
    for part in (models, tables, plans, days, hosts, trainings):
        part(walk)
    for path, (kind, _) in walk.kinds.items():
        if path.suffix == ".json":
            read_file(path)
        assert path.exists(), kind
    reads = {(kind, name) for name, (kinds, _) in FILES.items() for kind in kinds}
    assert walk.read == reads - set(ELSEWHERE)
    writes = {(name, kind) for name, (_, kinds) in FILES.items() for kind in kinds}
    kinds = (
        "strategy request",
        "training rows",
        "serving rows",
        "job history",
        "demand trace",
        "prices",
        "spans",
    )
    given = {("", kind) for kind in kinds}
    assert walk.written - given == writes - {
        ("train", "run"),
        ("weights", "weights"),
        ("evaluate", "evaluation"),
        ("profile-llm", "llm points"),
    }
    # Of several that write a kind each one's is read, by one command at least.
    read = {kind for kind, _ in walk.read}
    assert {write for write in writes if write[1] in read} <= walk.used


def test_every_command_is_in_the_table_and_in_the_documentation():
    (found,) = (action.choices for action in command._parser()._actions if isinstance(action.choices, dict))
    assert set(found) == set(FILES)
    text = (ROOT / "docs" / "file-formats.md").read_text()
    assert set(re.findall(r"(?m)^\| `([a-z-]+)(?: |`)", text.partition("### Options of request")[0])) == set(
        FILES
    )
    read = {kind for reads, _ in FILES.values() for kind in reads}
    assert {kind for _, writes in FILES.values() for kind in writes} - read == ANSWERS
    for where in ELSEWHERE.values():
        assert (ROOT / where).exists()
