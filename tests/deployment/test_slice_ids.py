"""The script that finds UUIDs, against listings of nvidia-smi -L."""

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import FakeHost, plan_of, planned_gpu, tenant

LISTING = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 3g.40gb     Device  0: (UUID: MIG-aaa)
  MIG 1g.10gb     Device  1: (UUID: MIG-bbb)
  MIG 1g.10gb     Device  2: (UUID: MIG-ccc)
GPU 1: NVIDIA L4 (UUID: GPU-11111111-d268-c3f3-1b07-005d5ae1dc3f)
GPU 2: NVIDIA A100-SXM4-80GB (UUID: GPU-22222222-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 1g.10gb     Device  0: (UUID: MIG-GPU-22222222-d268-c3f3-1b07-005d5ae1dc3f/7/0)
"""

PLAN = plan_of(
    planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 0, "a"), ("1g.10gb", 1, "b"), ("3g.40gb", 4, "c")]),
    planned_gpu("gpu1", "L4-24GB", [("", 0, tenant("d"))]),
    planned_gpu("gpu2", "A100-80GB", [("1g.10gb", 0, "a")]),
)


def listing(host: FakeHost, text: str) -> str:
    """A PATH whose nvidia-smi lists this, and the script."""
    (host.directory / "listing").write_text(text)
    program = host.directory / "nvidia-smi"
    program.write_text(f'#!/bin/bash\n[[ $* == -L ]] && cat "{host.directory}/listing"\n')
    program.chmod(0o755)
    return asked(PLAN).texts("compose")["compose/find-slices.sh"]


def test_every_server_gets_a_slice_of_its_profile_on_its_gpu(fake_host):
    done = fake_host.run(listing(fake_host, LISTING))
    assert done.returncode == 0, done.stderr
    assert dict(line.split("=") for line in done.stdout.splitlines()) == {
        "SLICE_GPU0_1G_10GB_AT0": "MIG-bbb",
        "SLICE_GPU0_1G_10GB_AT1": "MIG-ccc",
        "SLICE_GPU0_3G_40GB_AT4": "MIG-aaa",
        "SLICE_GPU1_WHOLE_AT0": "GPU-11111111-d268-c3f3-1b07-005d5ae1dc3f",
        "SLICE_GPU2_1G_10GB_AT0": "MIG-GPU-22222222-d268-c3f3-1b07-005d5ae1dc3f/7/0",
    }


def test_units_get_a_file_each(fake_host, tmp_path):
    folder = tmp_path / "slices"
    text = listing(fake_host, LISTING)
    assert fake_host.run(text, "--units", str(folder)).returncode == 2
    folder.mkdir()
    assert fake_host.run(text, "--units", str(folder)).returncode == 0
    assert len(list(folder.iterdir())) == 5
    assert (folder / "gpu0-3g-40gb-at4.env").read_text() == "CUDA_VISIBLE_DEVICES=MIG-aaa\n"


def test_a_slice_that_is_not_there_is_named(fake_host):
    done = fake_host.run(listing(fake_host, LISTING.replace("  MIG 3g.40gb", "  MIG 4g.40gb")))
    assert done.returncode == 1
    assert "gpu0-3g-40gb-at4" in done.stderr
    assert "SLICE_GPU0_3G" not in done.stdout
