"""A fleet as one line: what it says, what is unclear, and layouts there and back."""

import pytest

from torchsplit_core.hardware import catalogue, gpu_type
from torchsplit_core.planning.request.fleet_text import format_layouts, parse_fleet, parse_layouts
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.values import FleetEntry, InputFault, PlanModel, PlanRequest, Stage, Variant


def test_the_short_form_stays_what_it_was():
    assert parse_fleet("2xA100-80GB, 1xA30-24GB,") == (
        FleetEntry("A100-80GB", count=2),
        FleetEntry("A30-24GB"),
    )
    assert parse_fleet("A30-24GB") == (FleetEntry("A30-24GB"),)


def test_an_entry_says_id_cost_node_and_layouts():
    text = (
        "node0/gpu0=A100-80GB@cost=2@node=a@layouts=7x1g.10gb/3g.40gb+4g.40gb, 3xA100-80GB @node= b @cost=0.5"
    )
    assert parse_fleet(text) == (
        FleetEntry(
            "A100-80GB", "node0/gpu0", 1, (("1g.10gb",) * 7, ("3g.40gb", "4g.40gb")), cost=2.0, node="a"
        ),
        FleetEntry("A100-80GB", count=3, cost=0.5, node="b"),
    )


@pytest.mark.parametrize(("text", "told"), [
    ("", "names no GPU"),
    ("0xA100-80GB", "has the count 0"),
    ("99999999xA100-80GB", "'99999999xA100-80GB' has a count of 8 digits"),
    ("2x", "2x"),
    ("2x A30", "COUNT"),
    ("=A100-80GB", "ID=TYPE"),
    ("a=b=A100-80GB", "ID=TYPE"),
    ("a=2xA100-80GB", "repeats a GPU that has an id"),
    ("A100-80GB@", "'@' is none of @cost="),
    ("A100-80GB@cost", "'@cost' is none of @cost="),
    ("A100-80GB@node=", "'@node=' is none of @cost="),
    ("A100-80GB@speed=2", "'@speed=2' is none of @cost="),
    ("A100-80GB@cost=2@cost=2", "gives @cost twice"),
    ("A100-80GB@cost=two", "is 'two', not a number"),
    ("A100-80GB@cost=-1", ", cost: "),
    ("A100-80GB@cost=nan", ", cost: "),
    ("A100-80GB@layouts=3g", "3g"),
    ("A100-80GB@layouts=7x1g.10gb//3g.40gb", "'' is not a layout"),
    ("A100-80GB@layouts=0x1g.10gb", "'0x1g.10gb' is not a layout"),
    ("A100-80GB@layouts=1g.10gb+", "1g.10gb+"),
    ("B9000", "B9000"),
])  # fmt: skip
def test_what_is_unclear_is_refused_with_its_place(text, told):
    with pytest.raises(InputFault) as caught:
        model = PlanModel("bert", (Variant("whole", (Stage("whole"),)),))
        validate(PlanRequest(parse_fleet(text), (model,)))
    assert told in str(caught.value)


def test_layouts_come_back_for_every_profile_that_there_is():
    for kind in catalogue():
        names = [profile.name for profile in gpu_type(kind).profiles]
        layouts = (*((name,) for name in names), tuple(names[:2]), (names[0],) * 3)
        assert parse_layouts(format_layouts(layouts), "here") == layouts
    assert format_layouts(None) == "" and parse_layouts(" ", "here") is None
