"""Every file that ships in examples/ goes through every command that reads it, as a user would give it."""

import json
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchsplit_core.cli.command import main

EXAMPLES = ROOT / "examples"
SHORT_S = 1.0
"""Of a search: what is tried here is that a file is taken, not how good its answer is."""

PLAN_REQUESTS = ("plan_request.json", "fleets/mixed_request.json", "samples/request.json")
MIXES = tuple(
    f"{folder}/{path.name}"
    for folder in ("mixes", "llm")
    for path in sorted((EXAMPLES / folder).glob("*.json"))
)
PLANS = (
    ("plan.json", "plan_request.json"),
    ("fleets/mixed_plan.json", "fleets/mixed_request.json"),
    ("samples/plan.json", "samples/request.json"),
)
PLACEMENTS = (
    "placement_request.json",
    *(f"placements/{path.name}" for path in sorted((EXAMPLES / "placements").glob("*.json"))),
)
ANSWERS = {
    "evaluation.json": "what `evaluate` writes",
    "llm_points.json": "what `profile-llm` writes",
    "measurement.json": "what `measure` writes",
    "placement.json": "what `place` writes",
    "placement_frontier.json": "what `place` writes",
    "simulation.json": "what `simulate` writes",
    "stages.json": "what `partition --export` writes beside the parts",
    "days/three_windows_replay.json": "what `simulate DAY --trace` writes",
    "transition.json": "what `transition` writes",
    "routes.json": "what `deploy` writes; `route` serves it until stopped: tests/serving/router",
}
"""Files that no command reads, or none that ends."""

SLOW, REPEATED, TORCH = pytest.mark.slow, pytest.mark.repeated, pytest.mark.torch
CASES: list[tuple[tuple[str, ...], tuple[pytest.MarkDecorator, ...]]] = [
    *((("plan", name), (SLOW,)) for name in PLAN_REQUESTS),
    *((("plan", name), (SLOW, REPEATED)) for name in MIXES),
    (("plan", "days/three_windows_request.json", "--over-windows"), (SLOW,)),
    (("plan", "plan_request.json", "--prices", "prices.json"), (SLOW,)),
    (("plan", "plan_request.json", "--prices", "days/prices.csv"), (SLOW,)),
    (("windows", "plan_request.json", "--trace", "days/five_services.csv", "--windows", "3", "--map", "m-mid=bert"),
     ()),
    *((("simulate", plan, "--request", request), (SLOW, REPEATED)) for plan, request in PLANS),
    (("simulate", "days/three_windows.json", "--request", "days/three_windows_request.json", "--trace",
      "days/three_windows_trace.csv", "--requests", "2000", "--replications", "1"), ()),
    *((("deploy", plan, "--request", request), ()) for plan, request in PLANS),
    (("transition", "plan.json", "--from", "host_state.json", "--request", "plan_request.json", "--evict-foreign"), ()),
    *((("place", name), (SLOW,)) for name in PLACEMENTS),
    (("sweep", "plan_request.json", "--vary", "gpus:A100-80GB=1,2"), (SLOW,)),
    (("sweep", "samples/request.json", "--vary", "attainment=0.5,0.99"), (SLOW,)),
    (("simulate", "simulation_request.json"), (SLOW,)),
    (("simulate", "simulations/chats_on_two_engines.json"), (SLOW,)),
    (("request", "profile.json", "--gpus", "1xA100-80GB", "--candidates", "partition.json"), ()),
    (("export", "profile.json"), ()),
    (("import", "profile.json"), ()),
    (("import", "profiles/other_columns.csv"), ()),
    (("import", "profiles/measured.csv"), ()),
    (("estimate-serving", "llm_serving.csv"), ()),
    (("estimate", "profiles/measured.csv", "profiles/query.csv"), ()),
    (("import", "history/job_profiles.csv"), ()),
    (("history", "history/sacct.csv", "history/dcgm.csv", "--request", "plan_request.json"), ()),
    (("partition", "partition_request.json"), ()),
    (("draw", "graph.json"), ()),
    (("strategy", "strategy_request.json", "--export", "{out}.py"), ()),
    (("train", "sample:llama", "--strategy", "strategy.json", "--write-fleet", "slurm", "--nnodes", "8",
      "--processes", "8"), (TORCH,)),
    (("train", "sample:llama", "--strategy", "training/two_ranks.json", "--write-fleet", "slurm"), (TORCH,)),
    (("train", "sample:llama", "--strategy", "training/two_sequence_parts.json", "--write-fleet", "slurm"),
     (TORCH,)),
    (("train", "sample:moe", "--strategy", "training/two_expert_ranks.json", "--write-fleet", "slurm"),
     (TORCH,)),
    (("train", "sample:digits", "--strategy", "training/digits.json", "--write-fleet", "slurm"), (TORCH,)),
]  # fmt: skip
SUFFIX = {"draw": ".svg", "sweep": ".csv", "estimate": ".csv", "estimate-serving": ".csv", "export": ".csv"}


def given(word: str, command: str, folder: Path) -> str:
    """A word of a command: an example by its path; of a search a copy that says for how short a time."""
    path = EXAMPLES / word
    if not path.is_file():
        return word.format(out=folder / "out")
    if command in ("plan", "place", "sweep", "strategy"):
        data = json.loads(path.read_text()) if path.suffix == ".json" else {}
        if "solver" not in data:
            return str(path)
        data["solver"]["time_limit_s"] = SHORT_S
        path = folder / path.name
        path.write_text(json.dumps(data))
    return str(path)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words[:2]), marks=marks) for words, marks in CASES]
)
def test_an_example_goes_through(words, tmp_path, capsys):
    command, *more = words
    out = tmp_path / f"out{SUFFIX.get(command, '')}"
    told = [command, *(given(word, command, tmp_path) for word in more), "-o", str(out)]
    assert main(told) == 0, capsys.readouterr().err
    assert out.exists()


def test_every_shipped_file_is_tried_or_said_to_be_an_answer():
    tried = {word for words, _ in CASES for word in words}
    shipped = {
        str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*") if path.suffix in (".json", ".csv")
    }
    assert shipped - tried == set(ANSWERS)
