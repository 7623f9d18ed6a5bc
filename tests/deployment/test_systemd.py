"""Units by systemd's own check where it is installed, and by what they say."""

import configparser
import re
import shutil
import subprocess

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.deployment import write_deployment
from torchsplit_core.files import read_text
from torchsplit_core.values import PlanOutcome


def unit(text: str) -> configparser.ConfigParser:
    """A unit, keys as they are written; one given twice has its last value."""
    found = configparser.ConfigParser(
        strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
    )
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text)
    return found


def mixed() -> PlanOutcome:
    several = ("3g.40gb", 4, tenant("b", processes=2))
    cores = tuple(("2c", start, tenant("c")) for start in (0, 2))
    return plan_of(
        planned_gpu("gpu0", "A100-80GB", [("3g.40gb", 0, tenant("a")), several]),
        planned_gpu("cpu0", "CPU-4c", cores),
    )


def test_the_target_wants_every_server_and_each_has_its_settings():
    texts = asked(mixed()).texts("systemd")
    wanted = [
        line.removeprefix("Wants=torchsplit-server@").removesuffix(".service")
        for line in texts["systemd/units/torchsplit.target"].splitlines()
        if line.startswith("Wants=torchsplit-server@")
    ]
    settings = {
        name.removeprefix("systemd/servers/").removesuffix(".env"): dict(
            line.split("=") for line in text.splitlines()
        )
        for name, text in texts.items()
        if name.startswith("systemd/servers/")
    }
    assert set(wanted) == set(settings) and len(wanted) == 4
    assert sorted(one["TORCHSPLIT_PORT"] for one in settings.values()) == ["8001", "8002", "8003", "8004"]
    assert [one.get("TORCHSPLIT_MPS") for one in settings.values()].count("1") == 1
    for one in settings.values():
        assert f"image/servers/{one['TORCHSPLIT_SERVER']}/plan.json" in texts
    _, routes = read_text(texts["systemd/routes.json"], expected="torchsplit.routes")
    urls = {server.url for model in routes.models for step in model.steps for server in step.servers}
    assert urls == {f"http://127.0.0.1:{8001 + i}" for i in range(4)}


def test_servers_on_cores_are_held_to_them_and_units_drain_and_start_again():
    texts = asked(mixed()).texts("systemd")
    held = {
        name.partition("@")[2].partition(".service")[0]: unit(text)["Service"]["CPUAffinity"]
        for name, text in texts.items()
        if name.endswith("cores.conf")
    }
    assert sorted(held.values()) == ["0-1", "2-3"]
    assert not any(name in texts["systemd/find-slices.sh"] for name in held)
    for name in ("torchsplit-server@.service", "torchsplit-router.service"):
        service = unit(texts[f"systemd/units/{name}"])["Service"]
        assert service["KillMode"] == "mixed"
        assert int(service["TimeoutStopSec"]) > 30
        assert service["Restart"] == "on-failure"
        assert service["DynamicUser"] == service["NoNewPrivileges"] == "yes"


def test_systemd_itself_finds_nothing_wrong(tmp_path):
    deployment = asked(mixed())
    write_deployment(deployment.files("systemd").values(), tmp_path)
    units = tmp_path / "systemd" / "units"
    servers = [path.stem for path in (tmp_path / "systemd" / "servers").iterdir()]
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        # Every name that a unit uses is one of these; systemd knows them all.
        known = {
            "Unit": {"Description", "Wants", "After", "Before", "PartOf"},
            "Service": {
                "Type", "Environment", "EnvironmentFile", "WorkingDirectory", "ExecStart", "KillMode", "TimeoutStopSec",
                "Restart", "RestartSec", "DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectSystem", "ProtectHome",
                "CPUAffinity", "RemainAfterExit",
            },
            "Install": {"WantedBy"},
        }  # fmt: skip
        for path in units.rglob("*.*"):
            if path.is_file():
                for section, keys in unit(path.read_text()).items():
                    assert set(keys) <= known.get(section, set()), (path, section)
        return
    names = ["torchsplit-mig.service", *(f"torchsplit-server@{server}.service" for server in servers)]
    for server in names[1:]:
        (units / server).symlink_to(units / "torchsplit-server@.service")
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(str(units / name) for name in ("torchsplit.target", *names))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    # What the host itself lacks (the entry point is installed later) is no fault of a unit's.
    ours = [line for line in done.stderr.splitlines() if "torchsplit" in line]
    assert not [
        line for line in ours if "Unknown" in line or "Failed to parse" in line or "ignoring" in line
    ], ours


def test_the_gpus_are_cut_and_found_at_boot_before_the_servers_start(fake_host):
    texts = asked(mixed()).texts("systemd")
    boot = unit(texts["systemd/units/torchsplit-mig.service"])
    assert (boot["Service"]["Type"], boot["Service"]["RemainAfterExit"]) == ("oneshot", "yes")
    assert boot["Install"]["WantedBy"] == "multi-user.target"
    commands = re.findall(r"^ExecStart=(.+)$", texts["systemd/units/torchsplit-mig.service"], re.MULTILINE)
    assert [command.split()[1].rpartition("/")[2] for command in commands if "bash" in command] == [
        "apply-mig.sh", "find-slices.sh",
    ]  # fmt: skip
    assert (
        "torchsplit-mig.service" in unit(texts["systemd/units/torchsplit-server@.service"])["Unit"]["After"]
    )
    fake_host.set(gpu0={"type": "A100-80GB", "mode": "Enabled"})
    for _ in range(2):
        assert fake_host.run(texts["systemd/apply-mig.sh"], "--apply").returncode == 0
        assert fake_host.placed(0) == [("3g.40gb", 0), ("3g.40gb", 4)]
    on_cores = asked(plan_of(planned_gpu("cpu0", "CPU-4c", [("2c", 0, tenant("c"))]))).texts("systemd")
    assert not any("mig" in name for name in on_cores)


def test_hostile_names_stand_nowhere_in_a_unit():
    evil = "x %n $(touch PWNED) ; [Service] ExecStart=/bin/false"
    texts = asked(plan_of(planned_gpu("gpu0", "A100-80GB", [("7g.80gb", 0, evil)]))).texts("systemd")
    for name, text in texts.items():
        if name.startswith("systemd/") and not name.endswith(".json"):
            assert "PWNED" not in text and "/bin/false" not in text, name
