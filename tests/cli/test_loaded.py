"""What a command loads: imports are most of what a short one costs, so each may load what its table says."""

import json
import subprocess
import sys
from dataclasses import dataclass

from tests.support.paths import EXAMPLES, ROOT
from tests.support.seeds import repeated

PROGRAM = """
import json, sys
hidden = set(json.loads(sys.argv[1]))

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
before = set(sys.modules)
from torchsplit_core.cli.command import main
told = []
for command in json.loads(sys.argv[2]):
    try:
        status = main(command)
    except SystemExit as ended:
        status = ended.code
    told.append([status, sorted(set(sys.modules) - before)])
print("\\n" + json.dumps(told))
"""

FILES = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
"""A contract file is checked by pydantic, which needs the others."""
SOLVER = {"numpy", "highspy"}
"""Plans are found by patterns and programs of rows, that HiGHS solves."""
MODELS = {"pyomo", "scipy", "charset_normalizer"}
"""Programs with co-locations or sums are Pyomo models, whose matrices are SciPy's; that loads f2py, which looks for the
last."""
PLANNING = {"graph", "hardware", "isolation", "planning", "latency_slo", "simulation", "solver", "workflow"}
"""A plan is searched, and simulated for what it says of response times."""
EVERY = {"cli", "extras", "files", "on_demand", "telemetry", "values"}
"""Rooms of every command. `telemetry` is off: its SDK would stand among the packages."""


@dataclass(frozen=True)
class Allowed:
    """What a command may load: packages, rooms of ours beside EVERY. `never` are modules within those."""

    packages: set[str]
    rooms: set[str]
    never: tuple[str, ...] = ()


UNUSED = ("torchsplit_core.planning.baselines.baseline_plans", "torchsplit_core.planning.explanation")
"""Neither a rule's plan nor an explanation is asked for."""
COMMANDS = {
    "plan examples/plan_request.json": Allowed(FILES | SOLVER, PLANNING, UNUSED),
    # A sum is a program; SciPy's statistics, which Pyomo asks for by itself, cost as much as all else.
    "plan examples/mixes/s1_fewest_gpus.json": Allowed(FILES | SOLVER | MODELS, PLANNING, (*UNUSED, "scipy.stats")),
    "request examples/profile.json --candidates examples/partition.json --gpus 1xA100-80GB": Allowed(
        # Profiles become points of the catalogue's slices: nothing is searched.
        FILES, {"graph", "hardware", "isolation", "planning", "workflow"}, ("torchsplit_core.planning.planner",),
    ),
    "deploy examples/plan.json --format nvidia-smi": Allowed(
        # Its README has the verdict on the plan, response times simulated (numpy); other formats are YAML.
        FILES | {"numpy", "yaml"}, (PLANNING - {"solver"}) | {"bundle", "deployment", "serving"},
        ("torchsplit_core.planning.planner",),
    ),
    # A text becomes a state by the catalogue; of mig-parted's YAML and of the driver nothing is loaded.
    "capture --smi tests/hardware/data/smi_list.txt": Allowed(FILES, {"graph", "hardware", "isolation"}),
    "simulate examples/simulation_request.json": Allowed(
        FILES | {"numpy"}, {"graph", "isolation", "simulation", "workflow"}
    ),
    "export examples/profile.json": Allowed(
        FILES, {"graph", "hardware", "isolation", "profiling", "tables"}, ("torchsplit_core.profiling.measuring",)
    ),
    # A table of GPUs from a decoder's sizes: no file is read, no plan made.
    "size llama-3.1-8b --gpus L40S-48GB:whole --requests 20": Allowed(
        {"numpy"}, {"graph", "hardware", "isolation", "llm", "planning", "simulation", "sizing", "tables"},
        ("torchsplit_core.planning.planner", "torchsplit_core.planning.formulation"),
    ),
    "history examples/history/sacct.csv examples/history/dcgm.csv": Allowed(
        # Tables alone: GPUs are counted by the names that Slurm has for them.
        set(), {"graph", "hardware", "isolation", "tables"}
    ),
    "estimate-serving tests/serving_estimates/data/rows.csv": Allowed(
        FILES | {"numpy"}, {"graph", "hardware", "isolation", "llm", "serving_estimates", "simulation", "tables"}
    ),
    # Intervals of curves are those of Student's t, of SciPy's special functions.
    "estimate examples/profiles/measured.csv examples/profiles/query.csv": Allowed(
        {"numpy", "scipy", "charset_normalizer"}, {"curves", "graph", "hardware", "isolation", "tables"},
        ("scipy.stats", "scipy.optimize"),
    ),
}  # fmt: skip


def loaded(*commands: list[str], hidden: tuple[str, ...] = ()) -> list[tuple[int, set[str]]]:
    """Exit code and modules loaded by then, after each command of one process without the hidden packages."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(hidden), json.dumps(commands)], cwd=ROOT, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return [(status, set(names)) for status, names in json.loads(done.stdout.splitlines()[-1])]


def packages(modules: set[str]) -> set[str]:
    """Packages that are neither Python's nor ours; parts of compiled ones have names of their own."""
    found = {name.partition(".")[0] for name in modules}
    found -= {*sys.stdlib_module_names, "torchsplit_core", "cython_runtime"}
    return {name for name in found if not name.startswith("_")}


def rooms(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("torchsplit_core.")}


def within(modules: set[str], names: tuple[str, ...]) -> set[str]:
    return {module for module in modules for name in names if f"{module}.".startswith(f"{name}.")}


@repeated("command", COMMANDS, kept=6)
def test_a_command_loads_what_the_table_says(command, tmp_path):
    allowed = COMMANDS[command]
    ((status, modules),) = loaded([*command.split(), "-o", str(tmp_path / "out")])
    assert status == 0
    assert packages(modules) <= allowed.packages
    assert rooms(modules) <= allowed.rooms | EVERY
    assert within(modules, allowed.never) == set()


def test_help_and_version_load_no_package():
    from torchsplit_core.cli.command import COMMANDS as known

    names = [name for _, _, texts in known for name in texts]
    told = loaded(["--version"], ["--help"], *([name, "--help"] for name in names))
    assert len(told) == 34
    for (status, modules), name in zip(told, ["--version", "--help", *names], strict=True):
        assert (status, packages(modules)) == (0, set()), name
    # Of the rooms, what choices and defaults are: no file is read, nothing planned, nothing measured.
    assert rooms(told[1][1]) == EVERY
    few = EVERY | {"bundle", "graph", "isolation", "profiling", "training", "serving", "workflow"}
    assert rooms(told[-1][1]) <= few


def test_a_plan_needs_neither_the_dashboard_nor_exporters_nor_torch(tmp_path):
    hidden = (
        "streamlit", "plotly", "opentelemetry", "requests", "starlette", "uvicorn", "prometheus_client", "pandas",
        "pyarrow", "torch", "ray", "networkx", "pydot", "yaml", "fast_sugiyama", "scipy", "pyomo",
    )  # fmt: skip
    plan = tmp_path / "plan.json"
    modules = loaded(
        ["plan", str(EXAMPLES / "plan_request.json"), "-o", str(plan)], ["draw", "x"], hidden=hidden
    )
    assert modules[0][0] == 0 and not packages(modules[0][1]) & set(hidden)
    assert json.loads(plan.read_text())["status"] == "optimal"
    assert modules[1][0] == 2, "the second command is at fault, so commands of one process are told apart"


def test_an_import_that_sneaks_in_is_found():
    modules = {
        "json", "torchsplit_core.cli.plan", "numpy.linalg", "scipy.stats._t", "scipy.special",
        "_csparsetools",
    }  # fmt: skip
    assert packages(modules) == {"numpy", "scipy"}
    assert within(modules, ("scipy.stats",)) == {"scipy.stats._t"}
    assert rooms(modules) == {"cli"}
