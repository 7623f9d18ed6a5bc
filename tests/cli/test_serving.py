"""What serve and measure say before they start."""

from dataclasses import replace
from pathlib import Path

from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import cli, workflow
from torchsplit_core.files import write_file
from torchsplit_core.serving.load_test import frontend_costs
from torchsplit_core.values import PlanRequest
from torchsplit_core.values.plan.front import FrontCosts
from torchsplit_core.values.serving.measurement import Measurement
from torchsplit_core.workspace.store import default_root

PLAN, REQUEST = cpu_plan([Placed("bert")], {"bert": "sample:bert"}, cores=1)
WORDS = "warning: The front passes about 10 requests/s (measured on here), and 20 are demanded. Ask for fewer"
SLOW = FrontCosts(100.0, host="here")


def written(folder: Path, request: PlanRequest) -> list[str]:
    write_file(PLAN, folder / "plan.json")
    write_file(request, folder / "request.json")
    return [str(folder / "plan.json"), "--request", str(folder / "request.json")]


def test_serve_says_what_the_front_does_not_pass_before_it_starts(tmp_path, monkeypatch, capsys):
    before = []
    monkeypatch.setattr(workflow, "serve", lambda *given, **more: before.append(capsys.readouterr().err))
    assert cli.main(["serve", *written(tmp_path, replace(REQUEST, front=SLOW))]) == 0
    assert cli.main(["serve", *written(tmp_path, REQUEST)]) == 0
    # A request that does not tell: what is kept for this host counts.
    monkeypatch.setattr(frontend_costs, "measure_costs", lambda progress: SLOW)
    frontend_costs.front_costs(default_root())
    assert cli.main(["serve", *written(tmp_path, REQUEST)]) == 0
    assert [WORDS in text for text in before] == [True, False, True]


def test_measure_measures_the_front_where_nobody_knows_it(tmp_path, monkeypatch):
    asked = []

    def measure(outcome, request, *given, **more):
        asked.append(request.front)
        return Measurement("", 1.0, 1.0, "here", ())

    monkeypatch.setattr(workflow, "measure", measure)
    monkeypatch.setattr(frontend_costs, "measure_costs", lambda progress: SLOW)
    own = FrontCosts(1.0)
    out = ["-o", str(tmp_path / "found.json")]
    for request, more in ((REQUEST, []), (replace(REQUEST, front=own), []), (REQUEST, ["--stand-in", "cpu"])):
        assert cli.main(["measure", *written(tmp_path, request), *more, *out]) == 0
    assert asked == [SLOW, own, None]
