"""Devices of replayed hosts on the Profile page: what each is, slices to be made, consent."""

import shutil
from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from app.models.profile.measuring import devices
from tests.support.app.page import button, said
from tests.support.app.profile_page import choose_source, opened
from tests.support.app.values import SOURCE
from tests.support.paths import ROOT
from torchsplit_core.hardware import discover_host
from torchsplit_core.hardware.replay import REPLAY_VARIABLE
from torchsplit_core.values import SlicesToMake

LISTINGS = ROOT / "tests" / "hardware" / "data"


@pytest.fixture
def host(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Replay a listing of real GPUs, in a copy."""

    def replay(name):
        copy = tmp_path / name
        shutil.copy(LISTINGS / name, copy)
        monkeypatch.setenv(REPLAY_VARIABLE, str(copy))

    return replay


def labels(page: AppTest) -> list[str]:
    return list(page.multiselect(key="profile-measure-devices").options)


def test_without_a_gpu_there_is_the_processor_alone(page, filled):
    tab = opened(page, filled, "Measure")
    assert labels(tab) == ["CPU"]
    assert "processor: " in said(tab)
    assert devices.CONSENT not in [box.label for box in tab.checkbox]


def test_mig_instances_are_offered_with_what_they_are(page, filled, host):
    host("h100_nvl_four_slices.json")
    tab = opened(page, filled, "Measure")
    assert labels(tab)[:2] == ["CPU", "GPU 0 · MIG 2g.24gb · 7839"] and len(labels(tab)) == 5
    chosen = [device.id for device in devices.measurable_devices(discover_host())[1:3]]
    tab.multiselect(key="profile-measure-devices").set_value(chosen).run()
    text = said(tab)
    assert text.count("MIG instance 2g.24gb of H100-NVL-94GB") == 2 and "21.6 GiB" in text
    assert "Slices of one GPU at the same time" in [box.label for box in tab.checkbox]


def test_a_whole_gpu_offers_emulated_slices_and_says_so(page, filled, host):
    host("a100_40gb_whole_and_empty.json")
    offered = devices.measurable_devices(discover_host())
    emulated = [device for device in offered if device.kind == "sm"]
    assert {device.sm_count for device in emulated} == {14, 28, 42, 56, 98}
    tab = opened(page, filled, "Measure")
    tab.multiselect(key="profile-measure-devices").set_value([emulated[0].id]).run()
    assert "<td>emulated</td>" in said(tab)


def test_a_gpu_without_mig_offers_no_slices(page, filled, host):
    host("t4_without_mig.json")
    tab = opened(page, filled, "Measure")
    assert labels(tab) == ["CPU", "GPU 0 · Tesla T4"]
    assert not tab.code


def test_slices_that_do_not_exist_have_their_commands(page, filled, host):
    host("a100_40gb_two_halves.json")
    tab = opened(page, filled, "Measure")
    tab.multiselect(key="profile-slices-wanted").set_value(["1g.5gb", "7g.40gb"]).run()
    shown = [code.value for code in tab.code]
    assert len(shown) == 2
    assert "-cgi 1g.5gb:" in shown[0] and "-cgi 7g.40gb:0" in shown[1]
    assert all("Untested on hardware" in text for text in shown)


def test_slices_are_made_only_with_the_owners_consent(page, filled, host, started, known):
    host("a100_40gb_two_halves.json")
    tab = choose_source(opened(page, filled, "Measure"))
    assert tab.checkbox(key="profile-slices-consent").disabled
    tab.multiselect(key="profile-slices-wanted").set_value(["1g.5gb"]).run()
    button(tab, "Measure").click().run()
    assert started.pop()[1].make_slices is None
    tab.checkbox(key="profile-slices-consent").check().run()
    tab.multiselect(key="profile-measure-devices").set_value([]).run()
    button(tab, "Measure").click().run()
    title, parameters = started.pop()
    assert title == f"Profile {SOURCE}" and parameters.device == ""
    assert parameters.make_slices == SlicesToMake(0, ("1g.5gb",), consent=True)
