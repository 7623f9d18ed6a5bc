"""What a request calls the models behind profiles, and the link that their cuts were found for."""

from dataclasses import replace

import pytest

from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.build import build_request, model_names
from torchsplit_core.values import FleetEntry, PartitionDevices, PartitionOutcome, Profile

FLEET = (FleetEntry(type="A30-24GB"),)


def named(*sources: str) -> list[str]:
    return model_names([Profile(source, "") for source in sources])


@pytest.mark.parametrize(("sources", "names"), [
    (("recommender.py:Client", "/a/ranker.py:Client"), ["recommender", "ranker"]),
    (("nets.py:Small", "nets.py:Large", "one.py:Net"), ["nets-Small", "nets-Large", "one"]),
    (("a/m.py:Net", "b/m.py:Net"), ["m-Net", "m-Net-2"]),
    (("sample:bert@large", "library:bert", "net.pt2"), ["bert", "bert-2", "net"]),
])  # fmt: skip
def test_a_model_is_called_after_its_file(sources, names):
    assert named(*sources) == names


def test_a_name_of_ones_own_goes_before_that_of_the_file():
    own = Profile("m.py:Net", "", name="ranker")
    assert model_names([own, Profile("m.py:Other", "")]) == ["ranker", "m"]
    assert model_names([own, own]) == ["ranker", "ranker-2"]
    profiles = [Profile("m.py:A", "a"), Profile("m.py:B", "b")]
    offered = edit.profiles_by_model(profiles)
    assert list(offered) == ["m-A", "m-B"]
    first = edit.new_request(["m-A"], offered, "A30-24GB", 1)
    both = edit.with_models(first, ["m-B"], offered)
    assert [(model.name, model.source) for model in both.models] == [("m-A", "m.py:A"), ("m-B", "m.py:B")]


def test_cuts_bring_the_link_that_they_were_found_for():
    profile = Profile("m.py:A", "a")
    cuts = PartitionOutcome(
        "optimal", (), None, None, architecture_hash="a", devices=PartitionDevices(2, None, 12.0)
    )
    asked = build_request([profile], FLEET, candidates=[cuts])
    assert asked.link_gb_per_s == 12.0
    assert build_request([profile], FLEET, candidates=[cuts], link_gb_per_s=50.0).link_gb_per_s == 50.0
    free = build_request([profile], FLEET)
    assert free.link_gb_per_s is None
    assert edit.with_cuts(free, profile, cuts).link_gb_per_s == 12.0
    assert edit.with_cuts(replace(free, link_gb_per_s=3.0), profile, cuts).link_gb_per_s == 3.0
