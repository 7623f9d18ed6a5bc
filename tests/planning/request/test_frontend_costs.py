"""The front's costs come with the profiles that were measured beside slices of cores."""

from dataclasses import asdict, replace

from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import FleetEntry, Profile, ProfileRow
from torchsplit_core.values.plan.front import FrontCosts

COSTS, SLOWER = FrontCosts(0.2, 0.4, cores=2, host="here"), FrontCosts(0.3, 0.4, cores=8, host="there")
CORES, GPU = (FleetEntry("CPU-2c"),), (FleetEntry("A100-80GB"),)


def profile(name: str, front: FrontCosts | None, bytes_: float | None = 128.0) -> Profile:
    rows = tuple(
        ProfileRow("whole", kind, slice_, 1, 1, 100.0, 10.0, None, None, 0.1, "measured")
        for kind, slice_ in (("CPU", "1c"), ("A100-80GB", "1g.10gb"))
    )
    devices = {"cpu:1c": {"cores": "0", **({"front": asdict(front)} if front else {})}}
    environment = {"devices": devices, **({} if bytes_ is None else {"bytes_per_request": bytes_})}
    return Profile(f"sample:{name}", name, environment, rows, name=name)


def test_a_fleet_of_cores_gets_what_its_profiles_tell_and_others_nothing():
    made = build_request([profile("a", COSTS), profile("b", SLOWER, None)], CORES)
    assert made.front == SLOWER
    assert [model.bytes_per_request for model in made.models] == [128.0, None]
    for made in (
        build_request([profile("a", COSTS)], GPU),
        build_request([profile("a", None)], CORES),
        build_request([replace(profile("a", None), environment={})], CORES),
    ):
        assert made.front is None and made.models[0].bytes_per_request is None


def test_it_is_part_of_the_question():
    made = build_request([profile("a", COSTS)], CORES)
    others = (
        replace(made, front=None),
        replace(made, front=SLOWER),
        replace(made, models=(replace(made.models[0], bytes_per_request=1.0),)),
    )
    assert len({request_hash(one) for one in (made, *others)}) == 4


def test_cores_that_join_a_fleet_and_models_that_join_cores_bring_it():
    profiles = {"a": profile("a", COSTS), "b": profile("b", None)}
    grown = edit.with_points(replace(build_request([profiles["a"]], GPU), gpus=(*GPU, *CORES)), profiles, ())
    assert grown.front == COSTS and grown.models[0].bytes_per_request == 128.0
    bare = build_request([profiles["b"]], CORES)
    assert bare.front is None and edit.with_models(bare, ["a"], profiles).front == COSTS
    # What is told already stays.
    told = build_request([profiles["a"]], CORES)
    assert edit.with_models(replace(told, front=SLOWER), ["b"], profiles).front == SLOWER
