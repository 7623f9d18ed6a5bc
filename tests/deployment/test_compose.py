"""Compose files against the published schema of the Compose specification, and against the plan."""

import json
import re
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.files import read_text
from torchsplit_core.values import InputFault, PlanOutcome

# The Compose specification's own schema (github.com/compose-spec/compose-spec, Apache-2.0), as check-jsonschema has it.
SCHEMA = json.loads(
    files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text()
)


def project(plan: PlanOutcome, name: str = "compose/compose.yaml") -> dict[str, Any]:
    """A compose file, checked against the schema."""
    document = yaml.safe_load(asked(plan).texts("compose")[name])
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    return document


def test_each_slice_is_a_container_with_its_device_and_port(mixed_plan):
    services = project(mixed_plan, "compose/node0/compose.yaml")
    servers = {name: one for name, one in services["services"].items() if name != "router"}
    assert len(servers) == 6
    devices = []
    for one in servers.values():
        (device,) = one["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"] and device["driver"] == "nvidia"
        devices += device["device_ids"]
        assert one["environment"]["TORCHSPLIT_SERVER"]
        assert int(one["stop_grace_period"].removesuffix("s")) > 30
        assert "/v2/health/ready" in one["healthcheck"]["test"][-1]
    assert len(set(devices)) == 6
    script = asked(mixed_plan).texts("compose")["compose/node0/find-slices.sh"]
    for device in devices:
        name = re.fullmatch(r"\$\{(SLICE_\w+):\?[^}]+\}", device)
        assert name is not None
        assert f"slice {name[1].removeprefix('SLICE_').lower().replace('_', '-')} " in script
    ports = [one["ports"][0] for one in services["services"].values()]
    assert ports == ["8000:8000", *(f"{8001 + i}:8000" for i in range(6))]


def test_the_router_knows_its_own_servers_by_name_and_others_by_host(mixed_plan):
    texts = asked(mixed_plan).texts("compose")
    _, routes = read_text(texts["compose/node0/routes.json"], expected="torchsplit.routes")
    clip = next(model for model in routes.models if model.name == "clip")
    urls = [server.url for server in clip.steps[0].servers]
    services = project(mixed_plan, "compose/node0/compose.yaml")["services"]
    assert len(urls) == 3
    assert [url.split("//")[1].split(":")[0] in services for url in urls] == [True, True, False]
    assert urls[2] == "http://node1:8001"


def test_cores_are_a_cpuset_and_no_device():
    slices = tuple(("2c", start, tenant("a")) for start in (0, 2))
    services = project(plan_of(planned_gpu("cpu0", "CPU-4c", slices)))
    servers = [one for name, one in services["services"].items() if name != "router"]
    assert [server["cpuset"] for server in servers] == ["0-1", "2-3"]
    assert all("deploy" not in server for server in servers)


def test_hosts_without_names_for_each_other_are_refused():
    slices = [("7g.80gb", 0, "a")]
    two = plan_of(planned_gpu("a b/gpu0", "A100-80GB", slices), planned_gpu("n/gpu0", "A100-80GB", slices))
    for name in ("compose", "systemd", "triton", "ray-serve", "slurm"):
        with pytest.raises(InputFault, match="RFC 1123"):
            asked(two).texts(name)
    mixed = plan_of(planned_gpu("gpu0", "A100-80GB", slices), planned_gpu("n/gpu0", "A100-80GB", slices))
    with pytest.raises(InputFault, match="names no host"):
        asked(mixed).texts("compose")
    # One host is reached by nobody else: it may have any name.
    assert asked(plan_of(planned_gpu("a b/gpu0", "A100-80GB", slices))).texts("compose")


def test_the_schema_notices_an_unknown_key(mixed_plan):
    services = project(mixed_plan, "compose/node0/compose.yaml")
    services["services"]["router"]["helthcheck"] = {}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(services)
